"""Which legs of a pull are interrupted, and when: D's metrics and the suspended pairs as time passes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

import pytest

from pdx_api.names import Role
from pdx_proxy.config.settings import Address, Deadlines, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State, pairing
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.handoff import pull_watch
from pdx_proxy.handoff.pull_watch import PullWatch
from tests.unit.proxy.handoff.virtual_time import VirtualLoop, run_virtually

Page = Callable[[float], bytes]
DEADLINES: Final = Deadlines(handoff_seconds=25.0)


def _endpoint(name: str, role: Role, generation: int = 1) -> Endpoint:
    return Endpoint(EndpointSpec(Address(name, 1), role), State.WARM, generation=generation)


P: Final = _endpoint("p", Role.PREFILL)
D: Final = _endpoint("d", Role.DECODE)
NOTHING_KNOWN: Final = Snapshot.of([P, D])
LATER_P: Final = _endpoint("p", Role.PREFILL, 2)


@dataclass(eq=False)
class _Leg:
    endpoint: Endpoint = D
    interrupted: list[float] = field(default_factory=list)

    def interrupt(self, failure: Exception) -> None:
        self.interrupted.append(asyncio.get_running_loop().time())


@dataclass
class _Result:
    interrupted: list[list[float]]
    """For each leg."""
    probes: int
    """How often a probe was requested."""


def page(*, deferred: int = 0, capacity: int = 0, moves: bool = False, reasons: bool = True) -> Page:
    """What D reports: `moves` if each second some transfers end; without `reasons` like an old vLLM."""

    def at(seconds: float) -> bytes:
        by = 'vllm:num_requests_waiting_by_reason{reason="%s"} %d\n'
        lines = by % ("capacity", capacity) + by % ("deferred", deferred) if reasons else ""
        count = int(seconds) if moves else 7
        transfers = "vllm:nixl_num_failed_transfers_total{} 0\nvllm:nixl_xfer_time_seconds_sum{} 1\n"
        return ("\n" + lines + transfers + f"vllm:nixl_xfer_time_seconds_count{{}} {count}\n").encode()

    return at


async def _watch(
    monkeypatch: pytest.MonkeyPatch, report: Page, snapshot: Snapshot, sent: list[float], seconds: float, at: float
) -> _Result:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)

    async def page_of(*_: Any) -> bytes:
        await asyncio.sleep(0.01)
        return report(loop.time())

    monkeypatch.setattr(pull_watch, "page_of", page_of)
    probes: list[Any] = []
    observer = SimpleNamespace(slow_handoff=probes.append)
    engines: Any = SimpleNamespace(deadlines=DEADLINES, clock=loop.time, snapshot=NOTHING_KNOWN, observer=observer)
    loop.call_at(at, setattr, engines, "snapshot", snapshot)
    legs: list[Any] = [_Leg() for _ in sent]
    watch = PullWatch(engines)
    for leg, start in zip(legs, sent, strict=True):
        loop.call_at(start, watch.add, leg, P, start)
    await asyncio.sleep(seconds)
    for leg in legs:
        watch.discard(leg)
    await asyncio.sleep(3.0)
    assert not loop._scheduled  # type: ignore[attr-defined]
    assert [watch._legs, watch._checks, watch._moved, watch._hung] == [{}, {}, {}, set()], "something is left"
    return _Result([leg.interrupted for leg in legs], len(probes))


def _run(
    monkeypatch: pytest.MonkeyPatch,
    report: Page,
    *,
    suspended: Endpoint | None = P,
    watched: bool = False,
    sent: tuple[float, ...] = (0.0,),
    seconds: float = 40.0,
    at: float = 17.5,
) -> _Result:
    """`at`: when the pair is suspended."""
    pairs = frozenset({pairing(suspended, D)} if suspended is not None else ())
    snapshot = Snapshot.of([P, D], suspended=pairs, watched=pairs if watched else frozenset())
    return run_virtually(_watch(monkeypatch, report, snapshot, list(sent), seconds, at))


def test_a_read_that_hangs_is_probed_and_interrupted_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _run(monkeypatch, page(deferred=1))
    ((at,),) = found.interrupted
    assert 17.5 < at < 19.0
    assert 3 <= found.probes <= 5


def test_a_younger_leg_that_hung_too_is_interrupted_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,), (second,) = _run(monkeypatch, page(deferred=2), sent=(0.0, 15.0)).interrupted
    assert first == second < 19.0


def test_a_d_that_ends_transfers_is_only_busy_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then, its pair is not probed either: a probe could be slow, too."""
    found = _run(monkeypatch, page(deferred=1, moves=True))
    ((at,),) = found.interrupted
    assert 25.0 <= at < 27.0
    assert not found.probes


def test_transfers_that_stand_still_because_of_a_suspension_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    moving, still = page(deferred=1, moves=True), page(deferred=1)
    report = lambda seconds: moving(seconds) if seconds < 12.0 else still(seconds)  # noqa: E731
    ((at,),) = _run(monkeypatch, report, at=12.0).interrupted
    assert 25.0 <= at < 27.0


@pytest.mark.parametrize(
    "report",
    [page(), page(capacity=3), page(capacity=3, deferred=1), lambda _: b""],
    ids=["nothing waits", "only queued", "queued behind another", "silent"],
)
def test_a_leg_that_does_not_wait_for_kv_is_not_interrupted(monkeypatch: pytest.MonkeyPatch, report: Page) -> None:
    assert _run(monkeypatch, report, seconds=24.0).interrupted == [[]]


def test_at_most_as_many_as_wait_are_interrupted_at_once_the_youngest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    old, young = _run(monkeypatch, page(deferred=1), sent=(0.0, 5.0), seconds=18.5).interrupted
    assert (len(old), len(young)) == (0, 1)


def test_a_suspension_in_another_generation_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ((at,),) = _run(monkeypatch, page(deferred=1), suspended=LATER_P).interrupted
    assert at < 19.0


@pytest.mark.parametrize("suspended", [P, None], ids=["a failed hand-off", "nothing known"])
def test_a_pair_that_is_not_convicted_is_probed(monkeypatch: pytest.MonkeyPatch, suspended: Endpoint | None) -> None:
    found = _run(monkeypatch, page(deferred=1), suspended=suspended, watched=True)
    assert found.interrupted == [[]]
    assert found.probes > 20


@pytest.mark.parametrize("moves", [False, True])
def test_without_reasons_only_the_deadline_interrupts(monkeypatch: pytest.MonkeyPatch, moves: bool) -> None:
    ((at,),) = _run(monkeypatch, page(moves=moves, reasons=False)).interrupted
    assert 25.0 <= at < 27.0
