"""The KV connectors, one file each. A file's `CONNECTOR` is found here: to add a connector, add its file.

Imports the top-level modules of pdx_api only. No other package names a connector, except `spec.custom`.
"""

import difflib
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from pdx_api.connectors.base import Connector, Site
from pdx_api.connectors.custom import Custom
from pdx_api.connectors.families import AtBootstrap, Family, Push
from pdx_api.names import Order, Role

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
        raise ValueError(f"connector {connector!r} does not exist; {connector_hint(connector).removesuffix('.')}")
    if protocol and isinstance(found, Custom):
        found = found.with_protocol(protocol)
    if order is None:
        return found, found.orders[0]
    if order not in found.orders:
        raise ValueError(f"connector {connector} has no order {order}; write one of: {', '.join(found.orders)}")
    return found, order


def connector_hint(given: str) -> str:
    """The connector to write instead of a name that does not exist, as the end of a sentence."""
    for name, orders in _classes().get(given.lower(), {}).items():
        suffix = "" if CONNECTORS[name].orders[0] in orders else f" with order {' or '.join(orders)}"
        return f"that is a class of vLLM, for which you write {name}{suffix}."
    short = re.sub(r"connector(v\d+)?$", "", given.lower())
    by_lower = {name.lower(): name for name in CONNECTORS}
    near = difflib.get_close_matches(short, by_lower, n=1)
    if near:
        return f"did you mean {by_lower[near[0]]}?"
    return f"write one of: {', '.join(CONNECTORS)}."


@lru_cache
def _classes() -> dict[str, dict[str, list[Order]]]:
    """vLLM's connector class, in lower case -> each connector that uses it, with the orders in which it does."""
    found: dict[str, dict[str, list[Order]]] = {}
    for connector in CONNECTORS.values():
        services = {each.name: Site("h", each.ports) for each in connector.services}
        site = Site("h", connector.port_names, "/s", None, services, "/f", 1)
        for order in connector.orders if not isinstance(connector, Custom) else ():
            wiring = connector.engine(Role.PREFILL, order, site, {})
            names = found.setdefault(str(wiring.kv_transfer_config["kv_connector"]).lower(), {})
            names.setdefault(connector.name, []).append(order)
    return found


@lru_cache
def family_of(connector: str, order: Order, protocol: str = "") -> Family:
    """The family of a connector in this order. Raises ValueError as `choose` does."""
    return choose(connector, order, protocol)[0].family(order)
