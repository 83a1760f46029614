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
    monkeypatch: pytest.MonkeyPatch, report: Page, snapshot: Snapshot, sent: list[float], seconds: float
) -> _Result:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)

    async def page_of(*_: Any) -> bytes:
        await asyncio.sleep(0.01)
        return report(loop.time())

    monkeypatch.setattr(pull_watch, "page_of", page_of)
    probes: list[Any] = []
    observer = SimpleNamespace(slow_handoff=probes.append)
    engines: Any = SimpleNamespace(deadlines=DEADLINES, clock=loop.time, snapshot=snapshot, observer=observer)
    legs: list[Any] = [_Leg() for _ in sent]
    watch = PullWatch(engines)
    for leg, at in zip(legs, sent, strict=True):
        loop.call_at(at, watch.add, leg, P, at)
    await asyncio.sleep(seconds)
    for leg in legs:
        watch.discard(leg)
    await asyncio.sleep(3.0)
    assert not loop._scheduled  # type: ignore[attr-defined]
    assert [watch._legs, watch._checks, watch._moved] == [{}, {}, {}], "something is left"
    return _Result([leg.interrupted for leg in legs], len(probes))


def _run(
    monkeypatch: pytest.MonkeyPatch,
    report: Page,
    *,
    suspended: Endpoint | None = P,
    watched: bool = False,
    sent: tuple[float, ...] = (0.0,),
    seconds: float = 40.0,
) -> _Result:
    pairs = frozenset({pairing(suspended, D)} if suspended is not None else ())
    snapshot = Snapshot.of([P, D], suspended=pairs, watched=pairs if watched else frozenset())
    return run_virtually(_watch(monkeypatch, report, snapshot, list(sent), seconds))


def test_a_read_that_hangs_is_interrupted_well_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    (interrupted,) = _run(monkeypatch, page(deferred=1)).interrupted
    assert len(interrupted) == 1
    assert DEADLINES.kv_due < interrupted[0] < 16.0


def test_a_d_that_ends_transfers_is_only_busy_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    (interrupted,) = _run(monkeypatch, page(deferred=1, moves=True)).interrupted
    assert len(interrupted) == 1
    assert 25.0 <= interrupted[0] < 27.0


@pytest.mark.parametrize(
    "report", [page(), page(capacity=3), lambda _: b""], ids=["nothing waits", "only queued", "silent"]
)
def test_while_no_request_waits_for_kv_none_is_interrupted(monkeypatch: pytest.MonkeyPatch, report: Page) -> None:
    assert _run(monkeypatch, report).interrupted == [[]]


def test_only_as_many_as_wait_are_interrupted_the_youngest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    old, young = _run(monkeypatch, page(deferred=1), sent=(0.0, 0.5), seconds=13.8).interrupted
    assert (len(old), len(young)) == (0, 1)


def test_a_suspension_in_another_generation_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    (interrupted,) = _run(monkeypatch, page(deferred=1), suspended=LATER_P).interrupted
    assert len(interrupted) == 1


@pytest.mark.parametrize("suspended", [P, None], ids=["a failed hand-off", "nothing known"])
def test_a_pair_that_is_not_convicted_is_probed(monkeypatch: pytest.MonkeyPatch, suspended: Endpoint | None) -> None:
    found = _run(monkeypatch, page(deferred=1), suspended=suspended, watched=True)
    assert found.interrupted == [[]]
    assert found.probes > 20


def test_without_reasons_only_the_deadline_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    (interrupted,) = _run(monkeypatch, page(moves=True, reasons=False)).interrupted
    assert len(interrupted) == 1
    assert interrupted[0] >= 25.0
