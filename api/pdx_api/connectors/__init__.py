"""The KV connectors: one file each, whose `CONNECTOR` is found here. Adding one is adding its file."""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from pdx_api.connectors.base import Connector
from pdx_api.connectors.custom import Custom
from pdx_api.connectors.families import AtBootstrap, Family, Push
from pdx_api.names import Order

DEFAULT: Final = "NIXL"


def _found() -> Iterator[Connector]:
    for module in pkgutil.iter_modules(__path__):
        connector = getattr(importlib.import_module(f"{__name__}.{module.name}"), "CONNECTOR", None)
        if connector is not None:
            yield connector


CONNECTORS: Final[dict[str, Connector]] = {
    connector.name: connector for connector in sorted(_found(), key=lambda one: (one.name != DEFAULT, one.name))
}
"""By name, the default first."""


def identity_ports() -> list[int]:
    """The ports of a pod, of whatever connector, at which a gateway asks for an engine's identity."""
    families = [(connector, connector.family(order)) for connector in CONNECTORS.values() for order in connector.orders]
    return sorted(
        {
            connector.port_names[family.identity.port]
            for connector, family in families
            if isinstance(family, Push) and isinstance(family.identity, AtBootstrap)
        }
    )


def service_titles() -> dict[str, str]:
    """The titles of all connectors' side services, by name; services without a title are left out."""
    services = [service for connector in CONNECTORS.values() for service in connector.services]
    return {service.name: service.title for service in services if service.title}


def choose(connector: str, order: Order | None, protocol: str = "") -> tuple[Connector, Order]:
    """The connector of that name and the order in force (its default when none is named).

    `protocol` says how a connector of the user's own is spoken to. Raises ValueError with a sentence that names what
    is possible.
    """
    found = CONNECTORS.get(connector)
    if found is None:
        raise ValueError(f"connector {connector!r} does not exist; write one of: {', '.join(CONNECTORS)}")
    if protocol and isinstance(found, Custom):
        found = found.told(protocol)
    if order is None:
        return found, found.orders[0]
    if order not in found.orders:
        raise ValueError(f"connector {connector} has no order {order}; write one of: {', '.join(found.orders)}")
    return found, order


@lru_cache
def family_of(connector: str, order: Order, protocol: str = "") -> Family:
    """How engines of that connector are spoken to, wired in this order. Raises ValueError as `choose` does."""
    return choose(connector, order, protocol)[0].family(order)
