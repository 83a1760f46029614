"""The attempts of one request: select engines, hand off, and try again within the retry budget."""

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pdx_api.connectors.families import Pool, Pull
from pdx_api.names import Role
from pdx_proxy.admission.admission import Admission, Waiter
from pdx_proxy.admission.permit import Permit
from pdx_proxy.balancing.load import Room
from pdx_proxy.balancing.pick import Choice, pick_prefill
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.transfer_params import LegRefused, PrefillStopped
from pdx_proxy.handoff import pool, pull, push
from pdx_proxy.handoff.failures import HandoffFailure, judge
from pdx_proxy.handoff.request import Handoff, Request
from pdx_proxy.handoff.settlements import Settlements
from pdx_proxy.http.downstream.exchange import Exchange
from pdx_proxy.http.upstream.failures import BadAnswer, EngineBusy, EngineFailure, Reason
from pdx_proxy.payload.body import decode_body
from pdx_proxy.serving.isolation import Isolation, QuarantineError
from pdx_proxy.serving.retry import Retry
from pdx_proxy.telemetry.counters import LocalPrefillReason

_REFUSED: Final = LocalPrefillReason.REFUSED
_STOPPED: Final = LocalPrefillReason.NOTHING


class Unserved:
    """The result of a request whose attempts all failed."""

    __slots__ = ("at_fault", "deadly", "last")

    def __init__(self, last: EngineFailure | None, *, deadly: bool = False, at_fault: bool = False) -> None:
        self.last = last
        """The failure of the last attempt; None if no engine could be selected."""
        self.deadly = deadly
        """Whether engines died of it, so that it was tried no more."""
        self.at_fault = at_fault
        """Whether two answers have shown that the request is at fault."""


class Attempts:
    """Runs the attempts of one worker's requests."""

    def __init__(self, settlements: Settlements, admission: Admission, isolation: Isolation, cursor: int) -> None:
        serving = self._serving = settlements.serving
        self._admission = admission
        self._isolation = isolation
        self.load = serving.engines.load
        self._engines = serving.engines
        self._chooser = serving.chooser
        self._settlements = settlements
        retries = serving.engines.settings.retries
        self._first = Retry(retries.on_prefill_failure, retries.attempts)
        """What every request begins with."""
        self._cursor = cursor
        """Round-robin cursor: decides between endpoints with equal load."""

    async def run(self, request: Request, method: str, exchange: Exchange) -> Handoff | Unserved:
        """Return the first answer that opens. Raises RefusedError for a request that is isolated or gets no slot.

        The first attempt waits until engines have room. Further attempts do not wait: the retry budget bounds them.
        The request is dropped on return, so that its body is not kept while the answer is relayed.
        """
        retry = self._first
        room: Room | None = None
        if self._isolation.active:
            self._isolation.admit(request, exchange)
        choice: Choice | None = None
        tried = self._admission.usage.all_waiting() == 0  # otherwise it waits behind others, and needs no engines yet
        fits = False
        if tried:
            fits, choice = self.choose_with_room(request)
        if fits:
            request.permit.serve()
        else:
            choice, room = await self._wait(request, exchange, tried)
        self._begin(request)
        while choice is not None:
            if room is None:
                room = Room(self.load, choice.decode, choice.prefill)
            failed: HandoffFailure | None = None
            try:
                if self.load.backing_off and (busy := self._busy(choice.decode, request)) is not None:
                    room.give_up()
                    return Unserved(retry.last if isinstance(retry.last, EngineBusy) else busy)
                split = retry.splits(request.divisible)
                self._chooser.count(choice, request.body, split=split, first=not retry.avoid)
                handoff = await self._attempt(choice, room, request, method)
            except LegRefused as refusal:
                request.timeline.end_attempt("", Reason.STATUS.value, self._engines.clock())
                retry = retry.after_refusal(_STOPPED if isinstance(refusal, PrefillStopped) else _REFUSED)
            except HandoffFailure as failure:
                failed = failure
            except asyncio.CancelledError:
                room.give_up()
                self._isolation.leave(choice, request, exchange)
                raise
            except BaseException:
                room.give_up()
                raise
            else:
                if retry.last is not None:
                    self._end_retries(retry, handoff)
                if request.divisible and handoff.prefill is None and choice.place is None:
                    self._count_local(handoff, _why_local(choice, split, retry, not self._chooser.splits))
                if not handoff.decode.answer.complete:
                    handoff.remember(request, self._isolation.identify(request.body))
                return handoff
            room.give_up()
            if failed is not None:
                retry = await self._after_failure(retry, failed, choice, request, exchange)
            choice, room = self._choose_again(request, retry), None
        if retry.pending.blame is not None:
            retry.pending.blame()
        if retry.is_deadly:
            await self._isolation.await_verdict(request, exchange)
        return Unserved(retry.last, deadly=retry.is_deadly, at_fault=retry.pending.at_fault)

    def _end_retries(self, retry: Retry, handoff: Handoff) -> None:
        """An engine has answered after others failed. A refusal shows that the request is at fault."""
        answer = handoff.decode.answer
        if answer.status != 200 or answer.refused:
            return
        if retry.pending.blame is not None:
            retry.pending.blame()
        if retry.pending.failed is not None and handoff.prefill is None:
            self._engines.observer.served_whole(retry.pending.failed)

    async def _after_failure(
        self, retry: Retry, failure: HandoffFailure, choice: Choice, request: Request, exchange: Exchange
    ) -> Retry:
        """Find out whether engines died in the attempt, and return what may follow."""
        prefill = choice.prefill
        if isinstance(failure.cause, EngineBusy):
            self._serving.back_off(failure.endpoint, failure.cause, request)
        dead = await self._isolation.deaths(failure.cause, choice, request, exchange)
        if not dead and retry.repeats(failure):
            if failure.endpoint.name in retry.avoid and retry.pending.blame is not None:
                retry.pending.blame()  # the only engine that is left has shown it twice
            if retry.pending.paid:
                client, _ = self._admission.identify(exchange, request.permit.name)
                self._serving.budget.give_back(self._engines.clock(), client)
            return self._note(retry.after_repetition(failure), failure, request)
        if retry.pending.blame is not None:
            retry.pending.blame()
        retry = retry.after_failure(failure, by_prefill=failure.endpoint is prefill)
        if dead:
            if failure.blame is not None:
                failure.blame()
            retry = retry.after_deaths(dead, of_decode=not dead <= self._prefills())
            if not self._isolation.may_try_again(request, exchange):
                retry = replace(retry, left=0, forbidden=True)
        self._serving.counters.retried(failure.cause.reason)
        return self._pay(self._note(retry, failure, request), failure, request, exchange)

    def left(self, handoff: Handoff, exchange: Exchange, permit: Permit) -> None:
        """The client has left in the middle of its answer."""
        self._isolation.leave_stream(handoff, exchange, permit.name)

    def broken(self, handoff: Handoff, exchange: Exchange, permit: Permit) -> None:
        """An answer has lost its engine, which may have died of the request."""
        self._settlements.start(self._isolation.after_stream(handoff, exchange, permit.name), permit)

    def _begin(self, request: Request) -> None:
        """The request has left the queue, or has not waited."""
        self._serving.budget.request(request.timeline.read)
        if request.keep_alive is not None and request.stream:
            request.keep_alive.start()

    def _choose_again(self, request: Request, retry: Retry) -> Choice | None:
        """Return the engines of a further attempt, which does not wait for room; None if there is none."""
        if not retry.left:
            return None
        if retry.at_prefill:
            self._cursor += 1
            snapshot = request.selectable(self._engines.snapshot)
            prefill = pick_prefill(snapshot, self.load.share, avoid=retry.avoid, cursor=self._cursor)
            if prefill is not None:
                return prefill
        choice = self._choose(request, retry)
        if choice is None or self.has_room(choice):
            return choice
        return self._choose_least_full(request, retry)

    async def _wait(self, request: Request, exchange: Exchange, tried: bool) -> tuple[Choice | None, Room | None]:
        waiter = RoomWaiter(self, request)
        request.leave_queue(await self._admission.wait(waiter, narrow=not request.divisible, tried=tried))
        if self._isolation.active:
            self._readmit(waiter, request, exchange)
        return waiter.choice, waiter.room

    def _readmit(self, waiter: "RoomWaiter", request: Request, exchange: Exchange) -> None:
        """Its client may have been isolated while the request waited."""
        try:
            self._isolation.admit(request, exchange, chosen=True)
        except QuarantineError:
            waiter.give_up()
            raise

    def has_room(self, choice: Choice) -> bool:
        """Whether both engines may get one more leg."""
        load, prefill = self.load, choice.prefill
        return not load.full(choice.decode) and (prefill is None or not load.full(prefill))

    def choose_free(self, request: Request) -> tuple[bool, Choice | None]:
        """As `choose_with_room`, when engines are probably full: they are not selected first."""
        load, snapshot = self.load, self._engines.snapshot
        full = {engine.name for engine in snapshot.decode if load.full(engine)}
        if full and len(full) == len(snapshot.decode) and self._chooser.splits:
            return False, None
        full.update([engine.name for engine in snapshot.prefill if load.full(engine)])
        choice = self._choose(request, self._first, full)
        if choice is not None and choice.decode.name not in full:
            prefill = choice.prefill
            if not request.divisible if prefill is None else prefill.name not in full:
                return True, choice
        return self.choose_with_room(request)

    def choose_with_room(self, request: Request) -> tuple[bool, Choice | None]:
        """Whether the request must wait no longer, and its engines; None if there are none.

        A request that can be split does not go to D alone only because every P is full. It does if no KV reaches D.
        """
        choice = self._choose(request, self._first)
        if choice is None or self.has_room(choice):
            return True, choice
        snapshot = self._engines.snapshot
        full = {e.name for e in snapshot.everything if self.load.full(e)}
        may_serve = snapshot.decode if self._chooser.splits else snapshot.everything
        if full.issuperset([engine.name for engine in may_serve]):
            return False, choice
        other = self._choose(request, self._first, full)
        if other is None or not self.has_room(other):
            return False, other
        return other.suspended or (other.prefill is None) == (choice.prefill is None), other

    def _choose(self, request: Request, retry: Retry, full: Collection[str] = ()) -> Choice | None:
        """Select engines, none of `full`. The first attempt may be left to D alone although it could be split."""
        self._cursor += 1
        snapshot, split = request.selectable(self._engines.snapshot), retry.splits(request.divisible)
        avoid = self._or_busy(full or retry.avoid, request) if self.load.backing_off else full or retry.avoid
        if split and not retry.avoid and self._chooser.places and request.only is None:
            waited = self._engines.clock() - request.timeline.read
            choice = self._chooser.place(snapshot, request.body, waited, avoid)
            if choice is not None:
                return choice
        return self._chooser.choose(snapshot, request.body, split=split, avoid=avoid, cursor=self._cursor)

    def _choose_least_full(self, request: Request, retry: Retry) -> Choice | None:
        avoid = self._or_busy(retry.avoid, request) if self.load.backing_off else retry.avoid
        split, snapshot = retry.splits(request.divisible), request.selectable(self._engines.snapshot)
        return self._chooser.choose_least_full(snapshot, request.body, split=split, avoid=avoid, cursor=self._cursor)

    def _prefills(self) -> set[str]:
        """Return the names of the prefill engines."""
        return {engine.name for engine in self._engines.snapshot.everything if engine.role is Role.PREFILL}

    def _or_busy(self, avoid: Collection[str], request: Request) -> Collection[str]:
        """Avoid engines that do not accept the request as well, and no other D if none is left to answer."""
        busy = self.load.busy(request.credential)
        both = {*avoid, *busy}
        others = {decode.name for decode in self._engines.snapshot.decode if decode.name not in busy}
        return both - others if others <= both else both

    def _busy(self, decode: Endpoint, request: Request) -> EngineBusy | None:
        """The failure of a request that no engine that is left accepts; None if `decode` accepts it."""
        busy = self.load.busy(request.credential)
        if decode.name not in busy:
            return None
        seconds = min(busy.get(engine.name, 0.0) for engine in self._engines.snapshot.decode)
        status = 503 if decode.name in self.load.busy(0) else 429
        return EngineBusy(decode.name, max(seconds, 1.0), status, b"")

    def _note(self, retry: Retry, failure: HandoffFailure, request: Request) -> Retry:
        """Record a failed attempt in the timeline."""
        cause, timeline = failure.cause, request.timeline
        timeline.failures.append(cause.reason.value)
        if isinstance(cause, BadAnswer) and cause.text:
            timeline.engine_text = cause.text
        timeline.end_attempt(failure.endpoint.name, cause.reason.value, self._engines.clock())
        return retry

    def _pay(self, retry: Retry, failure: HandoffFailure, request: Request, exchange: Exchange) -> Retry:
        """Take the next attempt from the retry budget. Without room there, none follows."""
        if not retry.left or not failure.begun or retry.pending.free:
            return retry
        client, is_crowd = self._admission.identify(exchange, request.permit.name)
        if not self._serving.may_retry(client, is_crowd=is_crowd):
            return replace(retry, left=0)
        return retry.after_payment()

    def _attempt(self, choice: Choice, room: Room, request: Request, method: str) -> Coroutine[Any, Any, Handoff]:
        """One attempt: both legs, or D alone. Raises HandoffFailure or LegRefused when awaited."""
        prefill = choice.prefill
        if prefill is None:
            return self._whole(room, request, method)
        family = prefill.family
        if isinstance(family, Pull):
            return pull.hand_off(self._settlements, room, request)
        if isinstance(family, Pool):
            return pool.hand_off(self._settlements, room, request)
        return push.hand_off(self._settlements, room, request)

    async def _whole(self, room: Room, request: Request, method: str) -> Handoff:
        leg = self._serving.prefill_leg(room.take_decode(), request)
        try:
            await leg.connect()
            body = decode_body(request.body, None) if method == "POST" else b""
            self._serving.send(leg, request, body, self._engines.new_id(), method)
            await leg.first_event(self._engines.deadlines.answer(stream=request.shows_output or method == "GET"))
        except EngineFailure as failure:
            leg.end()
            blame = judge(failure, partial(self._engines.observer.answered_error, leg.endpoint, failure))
            raise HandoffFailure(leg.endpoint, failure, begun=leg.sent, blame=blame) from failure
        except BaseException:
            leg.end()
            raise
        return Handoff(leg)

    def _count_local(self, handoff: Handoff, reason: LocalPrefillReason) -> None:
        decode = handoff.decode
        if decode.endpoint.role is Role.DECODE and decode.answer.status == 200 and not decode.answer.refused:
            self._serving.counters.local_prefills[reason.value] += 1


class RoomWaiter(Waiter):
    """A request that waits until engines have room. Then it keeps its slots there."""

    __slots__ = ("_attempts", "_request", "choice", "room")

    def __init__(self, attempts: Attempts, request: Request) -> None:
        super().__init__(request.permit)
        self._attempts = attempts
        self._request = request
        self.choice: Choice | None = None
        """The engines that have room; None if no engine can answer."""
        self.room: Room | None = None
        """Its slots there."""

    def reserve(self) -> bool:
        fits, choice = self._attempts.choose_free(self._request)
        if fits and choice is not None:
            self.choice = choice
            self.room = Room(self._attempts.load, choice.decode, choice.prefill)
        return fits

    def give_up(self) -> None:
        if self.room is not None:
            self.room.give_up()


def _why_local(choice: Choice, split: bool, retry: Retry, never: bool) -> LocalPrefillReason:
    """Why D prefills a request that could have been split."""
    if never:
        return LocalPrefillReason.NEVER
    if choice.prefill is not None:
        return LocalPrefillReason.NOTHING
    if retry.refused is not None:
        return retry.refused
    if retry.avoid or not split:
        return LocalPrefillReason.FAILED
    if choice.suspended:
        return LocalPrefillReason.SUSPENDED
    return LocalPrefillReason.LONG_QUEUE if choice.decode.long_queue else LocalPrefillReason.NO_PREFILL
