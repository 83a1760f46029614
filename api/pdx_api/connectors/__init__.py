"""The KV connectors, one file each. A file's `CONNECTOR` is found here: to add a connector, add its file.

Imports the top-level modules of pdx_api only. No other package names a connector, except `spec.custom`.
"""

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
"""All connectors by name, the default first."""


def identity_ports() -> list[int]:
    """The ports of a pod, for all connectors, on which an engine answers its identity to a gateway."""
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
    """The connector with this name and the order in force: `order`, or the connector's default if None.

    `protocol` is that of a user's connector (`connectors.custom`). Raises ValueError with a sentence that names the
    possible values.
    """
    found = CONNECTORS.get(connector)
    if found is None:
        raise ValueError(f"connector {connector!r} does not exist; write one of: {', '.join(CONNECTORS)}")
    if protocol and isinstance(found, Custom):
        found = found.with_protocol(protocol)
    if order is None:
        return found, found.orders[0]
    if order not in found.orders:
        raise ValueError(f"connector {connector} has no order {order}; write one of: {', '.join(found.orders)}")
    return found, order


@lru_cache
def family_of(connector: str, order: Order, protocol: str = "") -> Family:
    """The family of a connector in this order. Raises ValueError as `choose` does."""
    return choose(connector, order, protocol)[0].family(order)
