"""The attempts of one request: select engines, hand off, and try again within the retry budget."""

from collections.abc import Collection, Coroutine
from typing import Any, Final

from pdx_api.connectors.families import Pool, Pull
from pdx_api.names import PrefillFailure, Role
from pdx_proxy.admission.admission import Admission, Waiter
from pdx_proxy.balancing.load import Room
from pdx_proxy.balancing.pick import Choice
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.transfer_params import LegRefused, PrefillStopped
from pdx_proxy.handoff import pool, pull, push
from pdx_proxy.handoff.call import Call
from pdx_proxy.handoff.result import Handoff, HandoffFailure
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.http.upstream.failures import BadAnswer, EngineBusy, EngineFailure, Reason
from pdx_proxy.payload.body import decode_body
from pdx_proxy.telemetry.counters import LocalPrefillReason

_REFUSED: Final = LocalPrefillReason.REFUSED
_STOPPED: Final = LocalPrefillReason.NOTHING


class Unserved:
    """The result of a request whose attempts all failed."""

    __slots__ = ("last",)

    def __init__(self, last: EngineFailure | None) -> None:
        self.last = last
        """The failure of the last attempt; None if no engine could be selected."""


class Attempts:
    """Runs the attempts of one worker's requests."""

    def __init__(self, serving: WorkerState, settlements: Settlements, admission: Admission, cursor: int) -> None:
        self._serving = serving
        self._admission = admission
        self.load = serving.engines.load
        self._engines = serving.engines
        self._chooser = serving.chooser
        self._settlements = settlements
        self._retries = serving.engines.settings.retries
        self._cursor = cursor
        """Round-robin cursor: decides between endpoints with equal load."""

    async def run(self, call: Call, method: str) -> Handoff | Unserved:
        """Return the first hand-off that succeeds. Raises ShedError if it never gets its slot.

        The first attempt waits until engines have room. Further attempts do not wait: the retry budget bounds them.
        The call is dropped on return, so that its body is not kept while the answer is relayed.
        """
        on_prefill_failure = self._retries.on_prefill_failure
        divisible = call.request.split
        refused: LocalPrefillReason | None = None
        avoid: set[str] = set()
        last: EngineFailure | None = None
        tries = self._retries.attempts
        while tries:
            tries -= 1
            split = call.request.split and (tries > 0 or last is None or on_prefill_failure is PrefillFailure.FAIL)
            choice = self._choose(call, split, avoid, not avoid)
            room: Room | None = None
            if last is None and refused is None:
                if self._may_begin(choice):
                    call.permit.serve()
                else:
                    choice, room = await self._wait(call)
                self._serving.budget.request(call.timeline.read)
                if call.keep_alive is not None and call.request.stream:
                    call.keep_alive.start()
            elif choice is not None and not self.has_room(choice):
                choice = self._choose_least_full(call, split, avoid)
            if choice is None:
                break
            if room is None:
                room = Room(self.load, choice.decode, choice.prefill)
            try:
                if self.load.backing_off and (busy := self._busy(choice.decode)) is not None:
                    return Unserved(last if isinstance(last, EngineBusy) else busy)
                self._chooser.count(choice, call.request, split=split, first=not avoid)
                handoff = await self._attempt(choice, room, call, method)
            except LegRefused as refusal:
                call.timeline.end_attempt("", Reason.STATUS.value, self._engines.clock())
                call, refused = call.whole(), _STOPPED if isinstance(refusal, PrefillStopped) else _REFUSED
                tries = max(tries, 1)
                continue
            except HandoffFailure as failure:
                last = self._record(failure, call, avoid)
                if failure.whole:
                    call = call.whole()
                if failure.endpoint is choice.prefill:
                    if on_prefill_failure is PrefillFailure.FAIL:
                        break
                    if on_prefill_failure is PrefillFailure.LOCAL:
                        call = call.whole()
                if tries and failure.begun and not self._serving.may_retry():
                    break
            else:
                if divisible and handoff.prefill is None and choice.place is None:
                    self._count_local(handoff, _why_local(choice, split, refused, bool(avoid)))
                return handoff
            finally:
                room.give_up()
        return Unserved(last)

    def _may_begin(self, choice: Choice | None) -> bool:
        """Whether the first attempt of a request needs no wait: no request waits, and the engines have room."""
        return self._admission.usage.all_waiting() == 0 and (choice is None or self.has_room(choice))

    async def _wait(self, call: Call) -> tuple[Choice | None, Room | None]:
        """Return the engines of the first attempt and its slots there, when they have room; None if there are none."""
        began = self._engines.clock()
        waiter = RoomWaiter(self, call)
        await self._admission.wait(waiter, narrow=not call.request.split)
        timeline = call.timeline
        timeline.queued = self._engines.clock() - began
        timeline.read += timeline.queued
        call.request.deadline += timeline.queued
        return waiter.choice, waiter.room

    def has_room(self, choice: Choice) -> bool:
        """Whether both engines may get one more leg."""
        load, prefill = self.load, choice.prefill
        return not load.full(choice.decode) and (prefill is None or not load.full(prefill))

    def choose_with_room(self, call: Call) -> tuple[bool, Choice | None]:
        """Whether the request must wait no longer, and its engines; None if there are none.

        A request that can be split does not go to D alone only because every P is full.
        """
        split = call.request.split
        choice = self._choose(call, split, (), True)
        if choice is None or self.has_room(choice):
            return True, choice
        full = {e.name for e in self._engines.snapshot.everything if self.load.full(e)}
        other = self._choose(call, split, full, True)
        fits = other is not None and self.has_room(other) and (other.prefill is None) == (choice.prefill is None)
        return fits, other

    def _choose(self, call: Call, split: bool, avoid: Collection[str], first: bool) -> Choice | None:
        """Select engines. `first`: for the first attempt, which D may serve alone although it could be split."""
        self._cursor += 1
        if self.load.backing_off:
            avoid = self._or_busy(avoid)
        if split and first and self._chooser.places:
            waited = self._engines.clock() - call.timeline.read
            choice = self._chooser.place(self._engines.snapshot, call.request, waited, avoid)
            if choice is not None:
                return choice
        return self._chooser.choose(self._engines.snapshot, call.request, split=split, avoid=avoid, cursor=self._cursor)

    def _choose_least_full(self, call: Call, split: bool, avoid: Collection[str]) -> Choice | None:
        snapshot = self._engines.snapshot
        if self.load.backing_off:
            avoid = self._or_busy(avoid)
        return self._chooser.choose_least_full(snapshot, call.request, split=split, avoid=avoid, cursor=self._cursor)

    def _or_busy(self, avoid: Collection[str]) -> Collection[str]:
        """Avoid engines that accept no request as well, and no other D if none is left to answer."""
        busy = self.load.busy()
        both = {*avoid, *busy}
        others = {each.name for each in self._engines.snapshot.decode if each.name not in busy}
        return both - others if others <= both else both

    def _busy(self, decode: Endpoint) -> EngineBusy | None:
        """The failure of a request for which only engines are left that accept none; None if `decode` accepts it."""
        busy = self.load.busy()
        if decode.name not in busy:
            return None
        seconds = min(busy.get(each.name, 0.0) for each in self._engines.snapshot.decode)
        return EngineBusy(decode.name, max(seconds, 1.0), 503, b"")

    def _record(self, failure: HandoffFailure, call: Call, avoid: set[str]) -> EngineFailure:
        """Count a failed attempt, and avoid its endpoint in the next one."""
        cause = failure.cause
        avoid.add(failure.endpoint.name)
        self._serving.counters.retried(cause.reason)
        call.timeline.failures.append(cause.reason.value)
        call.timeline.end_attempt(failure.endpoint.name, cause.reason.value, self._engines.clock())
        return cause

    def _attempt(self, choice: Choice, room: Room, call: Call, method: str) -> Coroutine[Any, Any, Handoff]:
        """One attempt: both legs, or D alone. Raises HandoffFailure or LegRefused when awaited."""
        prefill = choice.prefill
        if prefill is None:
            return self._whole(room, call, method)
        family = prefill.family
        if isinstance(family, Pull):
            return pull.hand_off(self._serving, self._settlements, family, room, call)
        if isinstance(family, Pool):
            return pool.hand_off(self._serving, self._settlements, family, room, call)
        return push.hand_off(self._serving, self._settlements, family, prefill.order, room, call)

    async def _whole(self, room: Room, call: Call, method: str) -> Handoff:
        leg = self._serving.prefill_leg(room.take_decode(), call.request, call.request.deadline)
        try:
            await leg.connect()
            body = decode_body(call.request.body, None) if method == "POST" else b""
            self._serving.send(leg, call, body, self._engines.new_id(), method)
            deadlines = self._engines.deadlines
            await leg.first_event(deadlines.answer(stream=call.request.stream or method == "GET"))
        except EngineFailure as failure:
            leg.end()
            if not isinstance(failure, BadAnswer):
                self._engines.observer.suspect(leg.endpoint, failure)
            raise HandoffFailure(leg.endpoint, failure, begun=leg.sent) from failure
        except BaseException:
            leg.end()
            raise
        return Handoff(leg)

    def _count_local(self, handoff: Handoff, reason: LocalPrefillReason) -> None:
        decode = handoff.decode
        if decode.endpoint.role is Role.DECODE and decode.answer.status == 200:
            self._serving.counters.local_prefills[reason.value] += 1


class RoomWaiter(Waiter):
    """A request that waits until engines have room. Then it keeps its slots there."""

    __slots__ = ("_attempts", "_call", "choice", "room")

    def __init__(self, attempts: Attempts, call: Call) -> None:
        super().__init__(call.permit)
        self._attempts = attempts
        self._call = call
        self.choice: Choice | None = None
        """The engines that have room; None if no engine can answer."""
        self.room: Room | None = None
        """Its slots there."""

    def reserve(self) -> bool:
        fits, choice = self._attempts.choose_with_room(self._call)
        if fits and choice is not None:
            self.choice = choice
            self.room = Room(self._attempts.load, choice.decode, choice.prefill)
        return fits

    def give_up(self) -> None:
        if self.room is not None:
            self.room.give_up()


def _why_local(choice: Choice, split: bool, refused: LocalPrefillReason | None, failed: bool) -> LocalPrefillReason:
    """Why D prefills a request that could have been split."""
    if choice.prefill is not None:
        return LocalPrefillReason.NOTHING
    if refused is not None:
        return refused
    if failed or not split:
        return LocalPrefillReason.FAILED
    return LocalPrefillReason.LONG_QUEUE if choice.decode.long_queue else LocalPrefillReason.NO_PREFILL
