"""What legs and hand-offs report is counted once and sent to the control side."""

from dataclasses import replace

import pytest

from pdx_api.names import Role
from pdx_proxy.balancing.load import Load, Slot
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State, pairing
from pdx_proxy.endpoints.events import Cause, EndpointEvent, HandedOver, HandoffEvent, HealthCheckRequest, Suspect
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.observer import EndpointObserver
from pdx_proxy.engines.outlier_detection import OutlierDetector
from pdx_proxy.http.upstream.connection_pool import ConnectionPool
from pdx_proxy.http.upstream.failures import (
    BadAnswer,
    ClosedConnection,
    ConnectFailure,
    ConnectTimeout,
    DeadlineExceeded,
    EngineFailure,
    LostConnection,
    Reason,
)

LIMIT = 3


def endpoint(port: int, role: Role = Role.DECODE) -> Endpoint:
    return Endpoint(EndpointSpec(Address("h", port), role), State.WARM, generation=1)


P1, P2, D1, D2 = endpoint(1, Role.PREFILL), endpoint(2, Role.PREFILL), endpoint(3), endpoint(4)


class Watched:
    """An observer with a clock of its own, and the events that it has sent."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[EndpointEvent | HandoffEvent] = []
        self.load = Load(lambda: self.now)
        self.observer = EndpointObserver(self.load, OutlierDetector(LIMIT), self.events.append)

    def fail(self, prefill: Endpoint, decode: Endpoint) -> None:
        """D answers a hand-off with 500."""
        self.observer.failed(decode, "status 500")
        failure = BadAnswer(decode.name, "status 500", Reason.STATUS, 500, b"")
        self.observer.decode_failed(prefill, decode, failure)

    def succeed(self, prefill: Endpoint, decode: Endpoint) -> None:
        self.observer.succeeded(decode)
        self.observer.handed_over(prefill, decode)

    @property
    def suspects(self) -> list[tuple[str, Cause]]:
        return [(event.name, event.cause) for event in self.events if isinstance(event, Suspect)]


async def test_a_leg_is_counted_until_it_ends_once() -> None:
    pool, one = ConnectionPool(idle_seconds=1, connect_seconds=1), endpoint(1, Role.DECODE)
    watched = Watched()
    load, observer = watched.load, watched.observer
    first, second = (Leg(pool, observer, Slot(load, one)) for _ in range(2))
    assert load.of(one) == 2
    first.end()
    first.end()
    assert load.of(one) == 1
    assert load.view() == {"h:1": 1}
    second.end()
    assert load.view() == {}


@pytest.mark.parametrize("failure", [DeadlineExceeded("h:3", "late"), ConnectTimeout("h:3", "no connection")])
def test_a_wait_that_was_too_long_requests_a_check(failure: EngineFailure) -> None:
    watched = Watched()
    for _ in range(3):
        watched.observer.suspect(D1, failure)
    assert watched.events == [HealthCheckRequest("h:3", 1)], "one a second is enough"
    watched.now += 1.0
    watched.observer.suspect(D1, failure)
    assert watched.events == [HealthCheckRequest("h:3", 1)] * 2


@pytest.mark.parametrize("failure", [LostConnection("h:3", "lost"), ConnectFailure("h:3", "refused")])
def test_a_lost_engine_is_reported_once_for_each_start(failure: EngineFailure) -> None:
    """An engine that dies with 500 requests sends one event, not 500."""
    watched = Watched()
    for _ in range(500):
        watched.observer.suspect(D1, failure)
    watched.observer.suspect(D1, DeadlineExceeded("h:3", "late"))
    assert watched.suspects == [("h:3", Cause.LOST)]
    assert len(watched.events) == 1
    again = replace(D1, generation=2)
    watched.observer.apply(Snapshot.of([again]))
    watched.observer.suspect(again, failure)
    assert len(watched.events) == 2


def test_a_closed_connection_requests_a_check_and_counts_as_an_error() -> None:
    watched = Watched()
    for _ in range(LIMIT - 1):
        watched.observer.suspect(D1, ClosedConnection("h:3", "connection lost"))
    assert watched.events == [HealthCheckRequest("h:3", 1)], "one answer that broke off is evidence about its request"
    watched.observer.suspect(D1, ClosedConnection("h:3", "connection lost"))
    assert watched.suspects == [("h:3", Cause.CONSECUTIVE_ERRORS)]


def test_an_engine_that_breaks_off_each_stream_is_ejected() -> None:
    """The first event of each stream is a success; only a whole answer shows that the engine can end one."""
    watched = Watched()
    for whole in (True, False):
        for _ in range(LIMIT - 1):
            watched.observer.succeeded(D1)
            watched.observer.suspect(D1, ClosedConnection("h:3", "connection lost"))
        if whole:
            watched.observer.completed(D1)
        assert not watched.suspects
    watched.observer.succeeded(D1)
    watched.observer.suspect(D1, ClosedConnection("h:3", "connection lost"))
    assert watched.suspects == [("h:3", Cause.CONSECUTIVE_ERRORS)]


def test_an_error_of_a_decode_ejects_no_prefill() -> None:
    """D1 fails every hand-off, and D2 none: D1 reaches the limit, and the P that both share does not."""
    watched = Watched()
    for _ in range(LIMIT):
        watched.fail(P1, D1)
        watched.succeed(P1, D2)
    assert watched.suspects == [("h:3", Cause.CONSECUTIVE_ERRORS)]
    assert HealthCheckRequest("h:1", 1) in watched.events, "P is checked, because it may have died"


@pytest.mark.parametrize("late", [False, True])
def test_only_kv_that_has_just_moved_ends_a_watch(late: bool) -> None:
    """The end of a long answer without a stream shows nothing about the pair now."""
    watched, pair = Watched(), pairing(P1, D1)
    watched.observer.apply(Snapshot.of([P1, D1], watched=frozenset({pair})))
    watched.observer.handed_over(P1, D1, late=late)
    assert watched.events == ([] if late else [HandedOver(pair)])


def test_a_prefill_whose_kv_cannot_be_used_ejects_no_decode() -> None:
    watched = Watched()
    for decode in (D1, D2) * LIMIT:
        watched.fail(P1, decode)
    assert set(watched.suspects) == {("h:1", Cause.FAILED_HANDOFFS)}


def test_a_decode_that_fails_with_every_prefill_is_at_fault() -> None:
    watched = Watched()
    for prefill in (P1, P2, P1, P2, P1):
        watched.fail(prefill, D1)
    assert watched.suspects == [("h:3", Cause.CONSECUTIVE_ERRORS)]


def test_a_full_decode_counts_against_nobody() -> None:
    watched = Watched()
    for _ in range(9):
        watched.observer.decode_failed(P1, D1, BadAnswer("h:3", "full", Reason.STATUS, 503, b""))
    assert not watched.events
