"""Runs one hand-off of a script with fake engines in virtual time, and returns everything that it did."""

import asyncio
import gc
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from pdx_api.connectors.families import Pool, Pull
from pdx_api.names import Role
from pdx_proxy.admission.permit import Permit
from pdx_proxy.admission.usage import Usage
from pdx_proxy.balancing.load import Load, Room
from pdx_proxy.config.settings import Address, Deadlines, EndpointSpec, Retries, Settings
from pdx_proxy.endpoints.endpoint import Endpoint, State, pairing
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.observer import EndpointObserver
from pdx_proxy.engines.outlier_detection import OutlierDetector
from pdx_proxy.engines.transfer_params import LegRefused
from pdx_proxy.handoff import pool, pull, push
from pdx_proxy.handoff.failures import HandoffFailure
from pdx_proxy.handoff.request import Handoff, Request
from pdx_proxy.handoff.settlements import Settlements
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.http.upstream.failures import RequestExpired
from pdx_proxy.payload.body import read_body
from pdx_proxy.telemetry.counters import Counters
from pdx_proxy.telemetry.timeline import Timeline
from tests.unit.proxy.handoff.fake_engines import IDENTITY, FakeEngines
from tests.unit.proxy.handoff.situations import Handshake, Script

_DEADLINES: Final = Deadlines(
    prefill_seconds=20.0,
    handoff_seconds=25.0,
    first_event_seconds=30.0,
    total_seconds=60.0,
    settle=10.0,
    nearly_done=1.0,
)
_LEASE_SECONDS: Final = 700.0
"""Longer than any lease, so that what is still counted as pinned then is a fault."""


def _endpoint(name: str, role: Role, script: Script) -> Endpoint:
    spec = EndpointSpec(Address(name, 1), role, connector=script.wiring.connector, order=script.wiring.order, pod=name)
    return Endpoint(spec, State.WARM, identity=IDENTITY if role is Role.PREFILL else None, generation=1)


def _engines(script: Script, events: list[Any]) -> FakeEngines:
    clock = asyncio.get_running_loop().time
    load, names = Load(clock), iter(range(1, 1000))
    settings = replace(Settings(), deadlines=_DEADLINES, retries=Retries(on_prefill_failure=script.policy))
    observer = EndpointObserver(load, OutlierDetector(settings.health.consecutive_errors), events.append)
    none: Any = None
    return FakeEngines(settings, none, lambda: f"name{next(names)}", clock, load, observer)


class _Pins(Counters):
    """Counters that note if a prefill engine's KV is unpinned twice."""

    twice = False

    def unpin(self, prefill: str) -> None:
        if prefill not in self.pinned:
            self.twice = True
            return
        super().unpin(prefill)


async def run(
    script: Script, *, hidden: bool = False, suspended: bool = False, watched: bool = False, closes_only: bool = False
) -> list[str]:
    """Return what engines noticed, what was counted and reported, and what the caller got.

    `hidden`: the request is a response whose engine may be silent. `suspended`: the pair moves no KV, as is known then.
    `watched`: a probe has yet to show whether it does.
    `closes_only`: P closes its connection when the script says that it dies.
    Fails if a slot, a permit or P's KV is not released exactly once.
    """
    events: list[Any] = []
    engines = _engines(script, events)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: engines.faults.append(repr(context)))
    prefill, decode, other = (
        _endpoint(name, role, script)
        for name, role in (("p", Role.PREFILL), ("d", Role.DECODE), ("other", Role.DECODE))
    )
    engines.prepare(script, (prefill, decode))
    engines.closes_only = closes_only
    pairs = frozenset({pairing(prefill, decode)} if suspended else ())
    engines.snapshot = Snapshot.of([prefill, decode, other], suspended=pairs, watched=pairs if watched else frozenset())
    counters = _Pins()
    serving = WorkerState(engines, counters=counters)
    serving.handshakes.apply({endpoint.start for endpoint in (prefill, decode, other)})
    if script.handshake is not Handshake.NONE:
        serving.handshakes.add(pairing(prefill, decode if script.handshake is Handshake.PAIR else other))
    checks: Any = SimpleNamespace(died=partial(_died, engines))
    serving.death_checks = checks
    budget: Any = SimpleNamespace(take=lambda *_, **__: _take(engines, script))
    serving.budget = budget
    settlements, usage = Settlements(serving), Usage()
    request = _request(script, usage, hidden)
    task = asyncio.ensure_future(_hand_off(settlements, prefill, decode, request))
    if script.leaves_at is not None:
        asyncio.get_running_loop().call_later(script.leaves_at, task.cancel)
    await asyncio.wait([task])
    engines.note(f"result: {_result(task)}")
    if not task.cancelled() and task.exception() is None:
        task.result().decode.end()
    request.permit.release()
    await settlements.drain()
    pinned = dict(serving.counters.pinned)
    await asyncio.sleep(_LEASE_SECONDS)
    gc.collect(0)  # failures of tasks
    assert not engines.faults
    assert not counters.twice, "P's KV is unpinned twice"
    assert not serving.counters.pinned, "P's KV stays pinned for ever"
    assert not engines.load.legs, "a slot was not released"
    assert (serving.counters.settling, usage.in_flight) == (0, 0), "a permit was not released"
    settled = {str(name): count for name, count in serving.counters.settlements.items() if count}
    return [*sorted(engines.notes), f"settled {settled}, pinned {pinned}", *(repr(event) for event in events)]


def _request(script: Script, usage: Usage, hidden: bool) -> Request:
    exchange: Any = object()
    permit = Permit(usage, exchange, None, None)
    permit.serve()
    path, raw = "/v1/completions", b'{"prompt":"a prompt","max_tokens":9%b}'
    if hidden:
        path, raw = "/v1/responses", b'{"input":"a prompt","max_output_tokens":9,"include_reasoning":false%b}'
    body = read_body(raw % (b',"stream":true' if script.stream else b""), "application/json", path)
    deadline = asyncio.get_running_loop().time() + _DEADLINES.total_seconds
    return Request(path, body, (), True, Timeline(), permit, deadline)


async def _hand_off(settlements: Settlements, prefill: Endpoint, decode: Endpoint, request: Request) -> Handoff:
    family, room = prefill.family, Room(settlements.engines.load, decode, prefill)
    if isinstance(family, Pull):
        return await pull.hand_off(settlements, room, request)
    if isinstance(family, Pool):
        return await pool.hand_off(settlements, room, request)
    return await push.hand_off(settlements, room, request)


async def _died(engines: FakeEngines, endpoint: Endpoint) -> bool:
    """A check whose connection is refused is all that an engine notices. It takes no time."""
    await asyncio.sleep(0)
    if engines.dead and endpoint.role is Role.PREFILL:
        return True
    if engines.refuses_connection(endpoint):
        engines.note(f"connect {endpoint.name}")
        return True
    return False


def _take(engines: FakeEngines, script: Script) -> bool:
    engines.note(f"budget: {script.budget}")
    return script.budget


def _result(task: "asyncio.Task[Any]") -> str:
    if task.cancelled():
        return "cancelled"
    failure = task.exception()
    if failure is None:
        handoff = task.result()
        return f"{handoff.decode.answer.status}, {'split' if handoff.prefill else 'not split'}"
    if isinstance(failure, HandoffFailure):
        if failure.blame is not None:
            failure.blame()  # as if another engine served the request
        return f"{failure.endpoint.name} {type(failure.cause).__name__} begun={failure.begun} whole={failure.whole}"
    assert isinstance(failure, LegRefused | RequestExpired), repr(failure)
    return type(failure).__name__
