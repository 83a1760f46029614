"""What an endpoint derives from its spec, here and in other processes."""

import pickle
from dataclasses import replace

import pytest

from pdx_api.connectors import CONNECTORS, family_of
from pdx_api.connectors.custom import Custom
from pdx_api.connectors.families import Pool
from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State, pairing

WIRED = [(name, order) for name, one in CONNECTORS.items() if not isinstance(one, Custom) for order in one.orders]


@pytest.mark.parametrize(("connector", "order"), WIRED)
def test_an_endpoint_has_its_family_in_every_process(connector: str, order: Order) -> None:
    endpoint = Endpoint(EndpointSpec(Address("h", 1), Role.PREFILL, connector=connector, order=order))
    received = pickle.loads(pickle.dumps(endpoint))
    assert received == endpoint
    assert type(received.family) is type(endpoint.family) is type(family_of(connector, order))


def test_an_endpoint_has_another_start_with_each_generation() -> None:
    first = Endpoint(EndpointSpec(Address("h", 1), Role.PREFILL), State.WARM, generation=1)
    second = replace(first, generation=2)
    assert (first.start, second.start) == (("h:1", 1), ("h:1", 2))
    assert pickle.loads(pickle.dumps(second)).start == second.start
    assert pairing(first, second) == ("h:1", 1, "h:1", 2)


def test_an_aggregated_engine_has_no_connector() -> None:
    endpoint = Endpoint(EndpointSpec(Address("h", 1), Role.AGGREGATED, connector=""))
    assert isinstance(endpoint.family, Pool)
