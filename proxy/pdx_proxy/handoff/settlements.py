"""Settlement: the tasks that free the KV blocks of hand-offs that ended early.

`settle` decides each step. This module performs the steps until one ends the settlement, and owns the tasks, because
the requests that they belonged to have ended.
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
from pdx_proxy.handoff.request import Request
from pdx_proxy.handoff.settle import Ask, CloseWhenOpen, Done, Free, Step, Substitute, settle
from pdx_proxy.handoff.situation import Situation
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.http.upstream.failures import EngineFailure
from pdx_proxy.payload.body import LegBody, identified
from pdx_proxy.telemetry.counters import Settlement
from pdx_proxy.telemetry.timeline import SettlementRecord

Result = TypeVar("Result")
LastStep = Free | CloseWhenOpen | Substitute
_LEG_HEADERS: Final[ContextVar[tuple[tuple[str, str], ...]]] = ContextVar("leg_headers", default=())
"""The trace context of the settlement that the task performs: its leg belongs to its span."""


class Legs:
    """Both legs of an attempt, as a settlement needs them. A base class: mypyc compiles no Protocol."""

    __slots__ = ()
    request: Request

    def situation(self) -> Situation:
        """Return what is true of the legs now."""
        raise NotImplementedError

    async def perform(self, step: Ask) -> None:
        """Perform a step after which the situation is read again."""
        raise NotImplementedError

    async def conclude(self, step: LastStep) -> Settlement:
        """Perform the last step; return what is counted."""
        raise NotImplementedError

    def end(self, result: Settlement | None) -> None:
        """End both legs, and count P's KV as free: at once, or when P's lease ends."""
        raise NotImplementedError


class Settlements:
    """Owner of the tasks that settle hand-offs."""

    __slots__ = ("_tasks", "engines", "serving")

    def __init__(self, serving: WorkerState) -> None:
        self.serving = serving
        self.engines = serving.engines
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Result], permit: Permit) -> "asyncio.Task[Result]":
        """Start a task that runs to its end even if the caller is cancelled. It holds the permit of its request."""
        task = asyncio.get_running_loop().create_task(work)
        permit.hold()
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, permit))
        return task

    def _ended(self, permit: Permit, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        permit.settled()

    async def drain(self) -> None:
        """Wait until every task has ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def settle(self, legs: Legs) -> None:
        """Free what the engines hold for a hand-off that ended early. The settlement owns the legs from here on.

        If that takes time, it goes on in the background. Until then the request holds what it held.
        """
        try:
            step = settle(legs.situation())
        except LookupError:
            legs.end(Settlement.LEASE)
            raise
        if isinstance(step, Done):
            legs.end(step.result)
            self._finish(legs, step.result, self.engines.clock(), "")
            return
        self.serving.counters.settling += 1  # not in the task, which begins after the request has ended
        task = self.start(self._run(legs, step), legs.request.permit)
        task.add_done_callback(self._settled)

    def _settled(self, task: "asyncio.Task[None]") -> None:
        self.serving.counters.settling -= 1

    async def _run(self, legs: Legs, step: Step) -> None:
        began, span_id = self.engines.clock(), self._begin_span(legs)
        self._finish(legs, await _perform(legs, step), began, span_id)

    def _begin_span(self, legs: Legs) -> str:
        """Return a new span of the request's trace, to which the settlement's legs belong; empty without a trace."""
        tracing = self.serving.tracing
        trace = None if tracing is None else legs.request.timeline.trace
        if tracing is None or trace is None or not trace.sampled:
            return ""
        span_id = tracing.sampler.new_span()
        _LEG_HEADERS.set(trace.headers(span_id))
        return span_id

    def _finish(self, legs: Legs, result: Settlement | None, began: float, span_id: str) -> None:
        """Count a settlement that has ended, and record it in the trace of its request."""
        if result is None:
            return
        self.serving.counters.settlements[result] += 1
        tracing, request = self.serving.tracing, legs.request
        if tracing is not None:
            record = SettlementRecord(began, self.engines.clock(), result.value, span_id)
            tracing.settled(request.path, request.timeline, record)

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
        return self.engines.deadlines.handoff_seconds + LEASE_MARGIN_SECONDS if kept is None else kept

    async def send(
        self, endpoint: Endpoint, request: Request, body: LegBody, request_id: str, *, short: bool = False
    ) -> int:
        """Send one leg that only settles; return the status of its whole answer, or 0 if none came in time.

        `short`: the body is a `settling_body`.
        An error counts against no engine: a D also answers it because of P's KV.
        """
        leg, api = self.engines.leg(endpoint), request.body.api
        if not short:
            request.settle_at(endpoint)
        if api.id_in_body:
            body = identified(body, request_id)
        try:
            await leg.connect()
            headers = (*request.headers, ("X-Request-Id", request_id), *_LEG_HEADERS.get())
            reads = endpoint.role is not Role.PREFILL and not short
            leg.send("POST", api.settles_at if short else request.path, headers, body, once=reads)
            return (await leg.whole(self.engines.deadlines.settle, counts=False)).status
        except EngineFailure:
            return 0
        finally:
            leg.end()


async def _perform(legs: Legs, step: Step) -> Settlement | None:
    """Perform steps until one ends the settlement; return what is counted."""
    result: Settlement | None = Settlement.LEASE
    try:
        while isinstance(step, Ask):
            await legs.perform(step)
            step = settle(legs.situation())
        result = step.result if isinstance(step, Done) else await legs.conclude(step)
    finally:
        legs.end(result)
    return result
