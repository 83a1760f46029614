"""Settlement: the tasks that release the KV blocks of hand-offs that ended early.

docs/settling.md lists which request frees whose blocks, as measured on real engines. Each settlement is a task with
a deadline. `Settlements` owns the tasks, because the request that they belonged to has ended.
"""

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeVar

from pdx_api.connectors.families import Pool
from pdx_api.defaults import LEASE_MARGIN_SECONDS
from pdx_api.names import Role
from pdx_proxy.admission.permit import Permit
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.handoff.call import Call
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.http.upstream.failures import EngineFailure
from pdx_proxy.payload.body import LegBody, identified
from pdx_proxy.payload.request import Request
from pdx_proxy.telemetry.counters import Settlement
from pdx_proxy.telemetry.timeline import SettlementRecord
from pdx_proxy.telemetry.trace_context import Trace
from pdx_proxy.telemetry.tracing import Tracing

Result = TypeVar("Result")
_LEG_HEADERS: Final[ContextVar[tuple[tuple[str, str], ...]]] = ContextVar("leg_headers", default=())
"""The trace context of the settlement that the task performs: its leg belongs to its span."""


class Settlements:
    """Owner of the tasks that settle hand-offs."""

    def __init__(self, serving: WorkerState) -> None:
        self.serving = serving
        self.engines = serving.engines
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Result], permit: Permit) -> "asyncio.Task[Result]":
        """Start a task that runs to its end even if the caller is cancelled. It holds the permit of its request."""
        task = asyncio.get_running_loop().create_task(work)
        permit.hold()
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, permit))
        return task

    def _end(self, permit: Permit, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        permit.settled()

    async def drain(self) -> None:
        """Wait until every task has ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def count(self, settlement: Settlement) -> None:
        """Count how a hand-off was settled."""
        self.serving.counters.settlements[settlement] += 1

    def settle(self, work: Coroutine[Any, Any, Settlement], call: Call) -> None:
        """Settle a hand-off in the background and count its result. Until then its request holds what it held."""
        self.serving.counters.settling += 1  # not in the task, which begins after the request has ended
        if self.serving.tracing is not None:
            work = _traced(work, call, self.serving.tracing, call.timeline.trace)
        self.start(self._settle(work), call.permit).add_done_callback(self._settled)

    async def _settle(self, work: Coroutine[Any, Any, Settlement]) -> None:
        self.count(await work)

    def _settled(self, task: "asyncio.Task[None]") -> None:
        self.serving.counters.settling -= 1

    async def while_pinned(self, prefill: Endpoint, work: Coroutine[Any, Any, Settlement]) -> Settlement:
        """Run a settlement of a finished P. Its KV counts as pinned until the end, or until its lease ends."""
        settlement = Settlement.LEASE
        try:
            settlement = await work
        finally:
            self.unpin(prefill, expires=settlement is Settlement.LEASE)
        return settlement

    def unpin(self, prefill: Endpoint, *, expires: bool) -> None:
        """P's KV is free at once, or (`expires`) when its lease ends."""
        unpin = self.serving.counters.unpin
        if expires:
            asyncio.get_running_loop().call_later(self._lease_seconds(prefill), unpin, prefill.name)
        else:
            unpin(prefill.name)

    def _lease_seconds(self, prefill: Endpoint) -> float:
        """How long P keeps finished KV that no D reads."""
        family = prefill.family
        kept = None if isinstance(family, Pool) else family.kept_seconds
        return self.engines.deadlines.handoff + LEASE_MARGIN_SECONDS if kept is None else kept

    async def call(
        self, endpoint: Endpoint, request: Request, body: LegBody, request_id: str, *, settles: bool = False
    ) -> int:
        """Send one whole leg without a client; return its status, or 0 if no answer came in time.

        `settles`: the body is a `settling_body`.
        An error counts against no engine: a D also answers it because of P's KV.
        """
        leg, api = self.engines.leg(endpoint), request.body.api
        leg.once = endpoint.role is not Role.PREFILL and not settles  # D refuses a `settling_body`, and reads nothing
        if api.id_in_body:
            body = identified(body, request_id)
        try:
            await leg.connect()
            headers = (*request.headers, ("X-Request-Id", request_id), *_LEG_HEADERS.get())
            leg.send("POST", api.settles_at if settles else request.path, headers, body)
            return (await leg.whole(self.engines.deadlines.settle, counts=False)).status
        except EngineFailure:
            return 0
        finally:
            leg.end()


async def _traced(
    work: Coroutine[Any, Any, Settlement], call: Call, tracing: Tracing, trace: Trace | None
) -> Settlement:
    """Settle, and record the settlement in the trace of its request."""
    began, span_id = tracing.clock(), ""
    if trace is not None and trace.sampled:
        span_id = tracing.sampler.new_span()
        _LEG_HEADERS.set(trace.headers(span_id))
    result = await work
    record = SettlementRecord(began, tracing.clock(), result.value, span_id)
    tracing.settled(call.request.path, call.timeline, record)
    return result
