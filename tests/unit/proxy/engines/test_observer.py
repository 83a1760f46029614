"""What legs and hand-offs report is counted once and sent to the control side."""

from dataclasses import replace

import pytest

from pdx_api.names import Role
from pdx_proxy.balancing.load import Load
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import EndpointEvent, Suspect
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.observer import EndpointObserver
from pdx_proxy.engines.outlier_detection import OutlierDetector
from pdx_proxy.http.upstream.connection_pool import ConnectionPool
from pdx_proxy.http.upstream.failures import BadAnswer, Reason


def endpoint(port: int, role: Role = Role.DECODE) -> Endpoint:
    return Endpoint(EndpointSpec(Address("h", port), role), State.WARM, generation=1)


async def test_a_leg_is_counted_until_it_ends_once() -> None:
    pool, load, one = ConnectionPool(idle_seconds=1, connect_seconds=1), Load(), endpoint(1, Role.DECODE)
    observer = EndpointObserver(load, OutlierDetector(5), lambda _: None)
    first, second = Leg(pool, observer, one), Leg(pool, observer, one)
    assert load.of(one) == 2
    first.end()
    first.end()
    assert load.of(one) == 1
    assert load.view() == {"h:1": 1}
    third = second.detach()
    second.end()
    assert load.of(one) == 1
    third.end()
    assert load.view() == {}


@pytest.mark.parametrize("ejected", [False, True])
def test_an_error_over_a_stale_prefill_is_forgiven(ejected: bool) -> None:
    prefill, decode = endpoint(1, Role.PREFILL), endpoint(2)
    outliers, events = OutlierDetector(5), list[EndpointEvent]()
    observer = EndpointObserver(Load(), outliers, events.append)
    failure = BadAnswer("h:2", "status 500", Reason.STATUS, 500, b"")
    observer.failed(decode, failure.detail)
    snapshot = Snapshot.of([replace(prefill, generation=2) if ejected else prefill, decode])
    observer.decode_failed(snapshot, prefill, decode, failure)
    assert outliers.counts == ({} if ejected else {("h:2", 1): 1})
    assert events == [Suspect("h:1", 1, f"its hand-off failed at {failure}")]
