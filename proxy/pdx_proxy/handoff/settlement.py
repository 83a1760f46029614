"""Settling: what a hand-off that nobody wants any more still needs, so that no engine keeps blocks for it.

Which action frees whose blocks is measured on real engines: docs/settling.md. Every action is a task of its own with a
deadline, owned here, because the request it belonged to is gone.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from pdx_api.connectors import family_of
from pdx_api.connectors.families import KVParams, Pool
from pdx_api.defaults import LEASE_MARGIN_SECONDS
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.transfer_params import LegRefused, transfer_params
from pdx_proxy.handoff.base import REFUSED_MAX_TOKENS
from pdx_proxy.handoff.serving_state import ServingState
from pdx_proxy.http.upstream.failures import BadAnswer, DeadlineExceeded, EngineFailure
from pdx_proxy.payload.request import Request, prefill_body, settling_body
from pdx_proxy.telemetry.counters import Settlement

_LATE_ANSWER_SECONDS: Final = 1.0
"""How long an answer that was on its way when the client left may take."""
_INTAKE_SECONDS: Final = 0.5
"""How long a D may take to hand a request to its engine.

A request whose connection closes while D's HTTP server still reads or tokenizes it never reaches D's engine, which then
tells P nothing.
"""
_ARRIVAL_SECONDS: Final = 1.0
"""How long the first KV from a P to a D may take, handshake included."""

Result = TypeVar("Result")


def _stops(prefill: Endpoint) -> bool:
    """Whether a P may be stopped while it works."""
    family = family_of(prefill.connector, prefill.order, prefill.spec.protocol)
    return not isinstance(family, Pool) or family.stops_prefill


class Settlements:
    """Owner of the tasks that settle hand-offs."""

    def __init__(self, serving: ServingState) -> None:
        self._serving = serving
        self._engines = serving.engines
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """Run something to its end, whatever becomes of the caller."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Wait until nothing is left to settle."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def count(self, settlement: Settlement) -> None:
        """Count how a hand-off was settled."""
        self._serving.counters.settlements[settlement] += 1

    def settle(self, work: Coroutine[Any, Any, Settlement]) -> None:
        """Settle a hand-off in the background and count how it ended."""
        self.start(self._settle(work))

    async def _settle(self, work: Coroutine[Any, Any, Settlement]) -> None:
        self._serving.counters.settling += 1
        try:
            self.count(await work)
        finally:
            self._serving.counters.settling -= 1

    def stop_prefill(self, leg: Leg, decode: Endpoint, request: Request, *, keeps: bool) -> None:
        """The client left while an awaited P prefilled: stop it, if its connector lets it be stopped.

        `keeps` says that it keeps for D what it finishes anyway, which is then released.
        """
        if not leg.begun:
            leg.end()
        elif keeps:
            self.settle(self._stop_prefill(leg, decode, request))
        elif _stops(leg.endpoint):
            self.count(Settlement.PREFILL_STOPPED)
            leg.end()
        else:
            self.settle(self._finish_prefill(leg))

    def release(
        self,
        pair: tuple[Endpoint, Endpoint],
        params: KVParams,
        request: Request,
        failure: EngineFailure | None = None,
        *,
        begun: bool = False,
    ) -> None:
        """P has finished and no D leg takes its parameters: free its blocks.

        `failure` is that of the pair's D, if it has failed; `begun` says that it may have read the blocks.
        """
        dead = failure is not None and not isinstance(failure, BadAnswer)
        self.settle(self._held(pair[0], self._release(self._releasers(pair, dead), params, request, begun)))

    def leave_decode(self, leg: Leg, pair: tuple[Endpoint, Endpoint], params: KVParams, request: Request) -> None:
        """The client left while D waited for the KV.

        A D that has fetched from this P before tells it when its leg is closed, as soon as its engine knows of the leg.
        From a D that is new to P an early close would not reach P: another D tells P, if there is one that can;
        otherwise D is closed once its KV has arrived.
        """
        if self._serving.has_handshake(*pair):
            self.settle(self._held(pair[0], self._close_when_open(leg, _INTAKE_SECONDS, Settlement.RELEASED)))
            return
        releaser = self._releasers(pair, dead=False)
        if releaser[1]:
            leg.end()
            self.settle(self._held(pair[0], self._release(releaser, params, request, begun=True)))
        elif request.stream:
            closing = self._close_when_open(leg, self._engines.deadlines.settle, Settlement.LEASE)
            self.settle(self._held(pair[0], closing))
        else:
            self.settle(self._held(pair[0], self._close_when_open(leg, _ARRIVAL_SECONDS, Settlement.RELEASED)))

    async def _held(self, prefill: Endpoint, work: Coroutine[Any, Any, Settlement]) -> Settlement:
        """Settle what P has finished; its KV counts as held until then, or until its lease ends."""
        settlement = Settlement.LEASE
        try:
            settlement = await work
        finally:
            self.let_go(prefill, expires=settlement is Settlement.LEASE)
        return settlement

    def let_go(self, prefill: Endpoint, *, expires: bool) -> None:
        """KV that P has held is free: now, or (`expires`) when its lease ends."""
        let_go = self._serving.counters.let_go
        if expires:
            asyncio.get_running_loop().call_later(self._kept_seconds(prefill), let_go, prefill.name)
        else:
            let_go(prefill.name)

    def _kept_seconds(self, prefill: Endpoint) -> float:
        """How long P keeps what it has finished and nobody takes."""
        family = family_of(prefill.connector, prefill.order, prefill.spec.protocol)
        kept = None if isinstance(family, Pool) else family.kept_seconds
        return self._engines.deadlines.handoff + LEASE_MARGIN_SECONDS if kept is None else kept

    async def _finish_prefill(self, leg: Leg) -> Settlement:
        try:
            answer = await leg.whole(self._engines.deadlines.prefill)
        except EngineFailure:
            return Settlement.PREFILL_STOPPED
        finally:
            leg.end()
        return Settlement.FINISHED if answer.status == 200 else Settlement.PREFILL_STOPPED

    async def _stop_prefill(self, leg: Leg, decode: Endpoint, request: Request) -> Settlement:
        try:
            try:
                answer = await leg.whole(self._engines.deadlines.nearly_done)
            except DeadlineExceeded:
                leg.half_close()
                answer = await leg.whole(_LATE_ANSWER_SECONDS)
            params = transfer_params(leg.endpoint, answer)
        except (EngineFailure, LegRefused):
            return Settlement.PREFILL_STOPPED
        finally:
            leg.end()
        if params is None:
            return Settlement.PREFILL_STOPPED
        self._serving.counters.hold(leg.endpoint.name)
        releasers = self._releasers((leg.endpoint, decode), dead=False)
        return await self._held(leg.endpoint, self._release(releasers, params, request, begun=False))

    def _releasers(self, pair: tuple[Endpoint, Endpoint], dead: bool) -> tuple[Endpoint, bool]:
        """The D to free P's blocks through, and whether KV has moved between the two.

        A dead D comes last, and so does one that may not be picked any more.
        """
        prefill, decode = pair
        others = [d for d in self._engines.snapshot.decode if d.revision == prefill.revision and d.name != decode.name]
        picked = any(d.name == decode.name for d in self._engines.snapshot.decode)
        candidates = others if dead and others else [decode, *others] if picked else [*others, decode]
        friend = next((d for d in candidates if self._serving.has_handshake(prefill, d)), None)
        return (friend or candidates[0], friend is not None)

    async def _release(
        self, releaser: tuple[Endpoint, bool], params: KVParams, request: Request, begun: bool
    ) -> Settlement:
        """A refused D leg frees P's blocks without any work, but only through a D that has fetched from this P before:

        the notice of a D that has not is lost (vLLM 0.32). Such a pair runs a D leg of one token instead, unless the
        blocks may have been read: they are then free, and read again they are another request's.
        """
        decode, handshaken = releaser
        if handshaken:
            salt = self._engines.new_id()
            body = settling_body(request.path, params, REFUSED_MAX_TOKENS, salt)
            status = await self.call(decode, request, body, salt)
            return Settlement.RELEASED if 400 <= status < 500 else Settlement.LEASE
        if begun:
            return Settlement.LEASE
        status = await self.call(decode, request, prefill_body(request.body, params), self._engines.new_id())
        return Settlement.RELEASED if status == 200 else Settlement.LEASE

    async def call(self, endpoint: Endpoint, request: Request, body: bytes, request_id: str) -> int:
        """One whole leg without a client; its status, or 0 if there was no answer in time."""
        leg = self._engines.leg(endpoint)
        try:
            await leg.connect()
            leg.send("POST", request.path, (*request.headers, ("X-Request-Id", request_id)), body)
            return (await leg.whole(self._engines.deadlines.settle)).status
        except EngineFailure:
            return 0
        finally:
            leg.end()

    async def _close_when_open(self, leg: Leg, seconds: float, otherwise: Settlement) -> Settlement:
        """Close D once its first event shows that the KV is there, or after `seconds`, which means `otherwise`.

        Without a stream nothing shows it: D is given time, and decodes meanwhile.
        """
        try:
            await leg.opened(seconds)
        except DeadlineExceeded:
            return otherwise
        except EngineFailure:
            return Settlement.LEASE
        finally:
            leg.end()
        return Settlement.RELEASED
