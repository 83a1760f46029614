"""The KV connectors, one file each. Adding one is adding its file and naming it in `CONNECTORS`."""

from typing import Final

from pdx_api.connectors.base import Connector
from pdx_api.connectors.nixl import Nixl
from pdx_api.connectors.shared_storage import SharedStorage
from pdx_api.names import Order

CONNECTORS: Final[dict[str, Connector]] = {connector.name: connector for connector in (Nixl(), SharedStorage())}


def choose(connector: str, order: Order | None) -> tuple[Connector, Order]:
    """The connector of that name and the order in force (its default when none is named).

    Raises ValueError with a sentence that names what is possible.
    """
    found = CONNECTORS.get(connector)
    if found is None:
        raise ValueError(f"connector {connector!r} does not exist; write one of: {', '.join(CONNECTORS)}")
    if order is None:
        return found, found.orders[0]
    if order not in found.orders:
        raise ValueError(f"connector {connector} has no order {order}; write one of: {', '.join(found.orders)}")
    return found, order
