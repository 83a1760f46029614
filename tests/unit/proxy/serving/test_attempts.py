"""What a wait in the gateway's queue does to a request, and which engines further attempts get."""

from types import SimpleNamespace
from typing import Any

from pdx_api.names import Role
from pdx_proxy.balancing.chooser import Chooser
from pdx_proxy.balancing.load import Load
from pdx_proxy.config.settings import Address, Choosing, EndpointSpec, Settings
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.handoff.call import Call
from pdx_proxy.payload.body import Body
from pdx_proxy.payload.decisions import COMPLETIONS
from pdx_proxy.payload.request import Request
from pdx_proxy.serving.attempts import Attempts
from pdx_proxy.telemetry.counters import Counters
from pdx_proxy.telemetry.timeline import Timeline

P, D = Role.PREFILL, Role.DECODE


async def test_a_wait_in_the_queue_does_not_use_up_the_whole_deadline() -> None:
    now = 100.0

    async def wait(_: object, *, narrow: bool) -> None:
        nonlocal now
        now += 7.0

    engines = SimpleNamespace(load=Load(), settings=Settings(), clock=lambda: now)
    serving: Any = SimpleNamespace(engines=engines, chooser=None)
    admission, nothing = SimpleNamespace(wait=wait), SimpleNamespace()
    attempts = Attempts(serving, nothing, admission, 0)  # type: ignore[arg-type]
    call = Call(Request(COMPLETIONS, Body(), (), True, deadline=500.0), Timeline(), nothing)  # type: ignore[arg-type]
    await attempts._wait(call)
    assert (call.timeline.queued, call.request.deadline) == (7.0, 507.0)
    assert call.whole().request.deadline == 507.0


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
    attempts = Attempts(serving, SimpleNamespace(), SimpleNamespace(), 0)  # type: ignore[arg-type]
    for _ in range(32):
        choice = attempts._choose_least_full(split=True, avoid={p.name})
        assert choice is not None
        assert choice.prefill is q
        load.acquire(choice.decode)
    assert (load.count(small), load.count(large)) == (6, 90)
