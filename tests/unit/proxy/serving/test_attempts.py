"""What a wait in the gateway's queue does to a request, and which engines further attempts get."""

import asyncio
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from pdx_api.names import Role, Split
from pdx_api.settings.gateway import Choosing
from pdx_proxy.admission.admission import Admission
from pdx_proxy.admission.permit import Permit
from pdx_proxy.admission.usage import Usage
from pdx_proxy.balancing.chooser import Chooser
from pdx_proxy.balancing.load import Load, Room
from pdx_proxy.config.settings import Address, EndpointSpec, Limits, Retries, Settings
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.upstreams import create_engines
from pdx_proxy.handoff.request import Request
from pdx_proxy.handoff.settlements import Settlements
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.http.upstream.failures import ConnectFailure, EngineBusy, EngineFailure
from pdx_proxy.payload.body import Body
from pdx_proxy.payload.decisions import COMPLETIONS
from pdx_proxy.serving.attempts import Attempts, Unserved
from pdx_proxy.telemetry.counters import Counters
from pdx_proxy.telemetry.timeline import Timeline

P, D = Role.PREFILL, Role.DECODE
NO_EXCHANGE: Any = None


async def _no_deaths(*_: object) -> frozenset[str]:
    return frozenset()


NOT_ISOLATED: Any = SimpleNamespace(active=False, deaths=_no_deaths)


def _request(deadline: float = inf) -> Request:
    nothing: Any = SimpleNamespace()
    return Request(COMPLETIONS, Body(), (), True, Timeline(), nothing, deadline)


def _attempts(serving: Any, admission: Any = None) -> Attempts:
    settlements: Any = SimpleNamespace(serving=serving)
    return Attempts(settlements, admission, NOT_ISOLATED, 0)


async def test_a_wait_in_the_queue_does_not_use_up_the_whole_deadline() -> None:

    async def wait(_: object, *, narrow: bool, tried: bool) -> float:
        return 7.0

    engines = SimpleNamespace(load=Load(), settings=Settings())
    serving: Any = SimpleNamespace(engines=engines, chooser=None)
    attempts = _attempts(serving, SimpleNamespace(wait=wait))
    request = _request(deadline=500.0)
    await attempts._wait(request, NO_EXCHANGE, False)
    assert (request.timeline.queued, request.deadline) == (7.0, 507.0)


def test_attempts_that_do_not_wait_are_divided_by_the_engines_limits() -> None:
    """D's are full: one that runs 4 requests and one that runs 60. A P fails, and 32 requests are tried again."""
    specs = [EndpointSpec(Address(name, 1), role) for name, role in (("p", P), ("q", P), ("small", D), ("large", D))]
    p, q, small, large = (Endpoint(spec, warm_up_state=State.WARM) for spec in specs)
    load = Load()
    load.limits = {p.name: 100, q.name: 100, small.name: 4, large.name: 60}
    for decode in (*[small] * 4, *[large] * 60):
        load.acquire(decode)
    engines = SimpleNamespace(load=load, settings=Settings(), snapshot=Snapshot.of([p, q, small, large]))
    serving: Any = SimpleNamespace(engines=engines, chooser=Chooser(Choosing(), load, Counters()))
    attempts = _attempts(serving)
    request, retry = _request(), replace(attempts._first, avoid=frozenset({p.name}))
    for _ in range(32):
        choice = attempts._choose_least_full(request, retry)
        assert choice is not None
        assert choice.prefill is q
        load.acquire(choice.decode)
    assert (load.count(small), load.count(large)) == (6, 90)


def test_a_failed_prefill_is_avoided_although_every_other_decode_is_busy_or_failed() -> None:
    specs = [EndpointSpec(Address(name, 1), role) for name, role in (("p", P), ("q", P), ("busy", D), ("failed", D))]
    p, q, busy, failed = (Endpoint(spec, warm_up_state=State.WARM) for spec in specs)
    load = Load()
    load.back_off(busy, 30.0)
    load.acquire(q)
    engines = SimpleNamespace(load=load, settings=Settings(), snapshot=Snapshot.of([p, q, busy, failed]))
    serving: Any = SimpleNamespace(engines=engines, chooser=Chooser(Choosing(), load, Counters()))
    attempts = _attempts(serving)
    assert attempts._or_busy({p.name}, _request()) == {p.name, busy.name}
    retry = replace(attempts._first, avoid=frozenset({p.name, failed.name}))
    choice = attempts._choose_least_full(_request(), retry)
    assert choice is not None
    assert (choice.prefill, choice.decode) == (q, failed)


@pytest.mark.parametrize("failure", [EngineBusy, ConnectFailure])
async def test_a_request_that_gives_its_room_up_wakes_the_next(failure: type[EngineFailure]) -> None:
    """Two requests wait for one D. It has room again, and is busy or gone before the first of them has sent its leg."""
    load = Load()
    legs: list[int] = []

    async def connect(address: Address, name: str) -> NoReturn:
        legs.append(load.count(decode))
        raise ConnectFailure(name, "refused")

    engines = create_engines(Settings(retries=Retries(attempts=1)), lambda event: None, load)
    engines.pool = SimpleNamespace(take=lambda *_: None, connect=connect, keep=lambda *_: None)  # type: ignore[assignment]
    decode = Endpoint(EndpointSpec(Address("d", 1), D), warm_up_state=State.WARM)
    engines.apply(Snapshot.of([decode]))
    load.limits = {decode.name: 1}
    serving, usage = WorkerState(engines), Usage()
    admission = Admission(Limits(max_wait_seconds=600.0), usage, load, serving.counters, engines.clock)
    attempts = Attempts(Settlements(serving), admission, NOT_ISOLATED, 0)
    load.acquire(decode)
    tasks = []
    for _ in range(2):
        exchange: Any = SimpleNamespace(headers={}, peer="c", size=1)
        request = Request(COMPLETIONS, Body(), (), False, Timeline(), Permit(usage, exchange, None, None))
        tasks.append(asyncio.create_task(attempts.run(request, "POST", NO_EXCHANGE)))
    await asyncio.sleep(0)
    assert len(admission._queue) == 2
    if failure is EngineBusy:
        load.back_off(decode, 30.0)
    load.release(decode)
    async with asyncio.timeout(10):
        results = await asyncio.gather(*tasks)
    assert [type(result.last) for result in results if isinstance(result, Unserved)] == [failure] * 2
    assert (load.count(decode), len(admission._queue)) == (0, 0)
    assert legs == ([] if failure is EngineBusy else [1, 1]), "each leg takes the slot that its request kept"


async def test_engines_are_chosen_once_for_a_request_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve requests wait for one D with room for two. Legs at P end too: P was not full, so nobody is woken."""
    load, chosen = Load(), 0
    engines = create_engines(Settings(), lambda event: None, load)
    prefill, decode = (
        Endpoint(EndpointSpec(Address(name, 1), role), warm_up_state=State.WARM) for name, role in (("p", P), ("d", D))
    )
    engines.apply(Snapshot.of([prefill, decode]))
    load.limits = {prefill.name: 8, decode.name: 2}
    serving, usage = WorkerState(engines), Usage()
    choose = serving.chooser.choose

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal chosen
        chosen += 1
        return choose(*args, **more)

    monkeypatch.setattr(serving.chooser, "choose", counted)
    admission = Admission(Limits(), usage, load, serving.counters, engines.clock)
    attempts = Attempts(Settlements(serving), admission, NOT_ISOLATED, 0)

    async def served(_: object, room: Room, *__: object) -> NoReturn:
        prefilled, leg = room.take_prefill(), room.take_decode()
        await asyncio.sleep(0)
        prefilled.release()
        await asyncio.sleep(0)
        leg.release()
        raise _ServedError

    monkeypatch.setattr(attempts, "_attempt", served)
    for _ in range(2):
        load.acquire(decode)
    tasks = []
    for _ in range(12):
        exchange: Any = SimpleNamespace(headers={}, peer="c", size=1)
        request = Request(COMPLETIONS, Body(), (), True, Timeline(), Permit(usage, exchange, None, None))
        tasks.append(asyncio.create_task(attempts.run(request, "POST", NO_EXCHANGE)))
    await asyncio.sleep(0)
    assert (len(admission._queue), chosen) == (12, 1), "the first finds no room anywhere; the others wait behind it"
    for _ in range(2):
        load.release(decode)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {_ServedError}
    assert chosen == 1 + 12


class _ServedError(Exception):
    """The request has been served."""


def _waiting(load: Load, snapshot: Snapshot, split: Split = Split.AUTO) -> Attempts:
    """Attempts whose requests wait in the queue."""
    engines = SimpleNamespace(load=load, settings=Settings(), snapshot=snapshot, clock=lambda: 0.0)
    return _attempts(SimpleNamespace(engines=engines, chooser=Chooser(Choosing(split=split), load, Counters())))


def test_a_busy_decode_lets_no_waiting_request_into_a_full_one() -> None:
    specs = [EndpointSpec(Address(name, 1), role) for name, role in (("p", P), ("busy", D), ("full", D))]
    p, busy, full = (Endpoint(spec, warm_up_state=State.WARM) for spec in specs)
    load = Load()
    load.limits = {p.name: 100, busy.name: 4, full.name: 4}
    for decode in (*[busy] * 3, *[full] * 4):
        load.acquire(decode)
    load.back_off(busy, 30.0)
    served, _ = _waiting(load, Snapshot.of([p, busy, full])).choose_free(_request())
    assert not served


def test_without_splitting_a_prefill_with_room_serves_what_waits() -> None:
    specs = [EndpointSpec(Address(name, 1), role) for name, role in (("p", P), ("q", P), ("d", D))]
    p, q, d = (Endpoint(spec, warm_up_state=State.WARM) for spec in specs)
    load = Load()
    load.limits = {p.name: 2, q.name: 100, d.name: 4}
    for engine in (*[p] * 2, *[q] * 9, *[d] * 4):
        load.acquire(engine)
    attempts = _waiting(load, Snapshot.of([p, q, d]), Split.NEVER)
    for choose in (attempts.choose_free, attempts.choose_with_room):
        served, choice = choose(_request())
        assert served
        assert choice is not None
        assert (choice.decode, choice.prefill) == (q, None)


def test_without_splitting_a_decode_that_failed_is_not_tried_again_before_a_prefill() -> None:
    specs = [EndpointSpec(Address(name, 1), role) for name, role in (("p", P), ("d", D))]
    p, d = (Endpoint(spec, warm_up_state=State.WARM) for spec in specs)
    load = Load()
    load.acquire(p)
    attempts = _waiting(load, Snapshot.of([p, d]), Split.NEVER)
    choice = attempts._choose(_request(), replace(attempts._first, avoid=frozenset({d.name})))
    assert choice is not None
    assert choice.decode is p
