"""What a wait in the gateway's queue does to a request."""

from types import SimpleNamespace
from typing import Any

from pdx_proxy.balancing.load import Load
from pdx_proxy.config.settings import Settings
from pdx_proxy.handoff.call import Call
from pdx_proxy.payload.body import Body
from pdx_proxy.payload.decisions import COMPLETIONS
from pdx_proxy.payload.request import Request
from pdx_proxy.serving.attempts import Attempts
from pdx_proxy.telemetry.timeline import Timeline


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
