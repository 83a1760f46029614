"""Isolation of requests that kill engines, in one worker: which deaths they caused, and what they may still use."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from math import ceil, inf
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from pdx_proxy.admission.admission import Admission
from pdx_proxy.admission.quarantine import Casualty, Verdicts
from pdx_proxy.balancing.pick import Choice
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.events import Cause
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.death_checks import may_have_died
from pdx_proxy.handoff.request import Handoff, Request
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.http.downstream.exchange import Exchange
from pdx_proxy.http.errors import RefusedError
from pdx_proxy.http.messages import BodyParts
from pdx_proxy.http.upstream.failures import ConnectFailure, EngineFailure, RequestExpired
from pdx_proxy.payload.body import Body, LegBody
from pdx_proxy.telemetry.counters import Quarantine

_VERDICT_SECONDS: Final = 0.5
"""How long the answer to a request that killed engines waits for the verdict, so that its client cannot be faster."""
_RETRY_SECONDS: Final = 5.0
"""The longest time after which a client that may use few engines is asked to send its request again."""
_LEFT_SECONDS: Final = 3.0
"""How long a request whose client has left counts as the cause of a death."""
_MOST_LEFT: Final = 1024
_KEPT_BYTES: Final = 4096
"""The largest body that is kept while its answer is relayed."""
_REFUSED: Final = "Engines died while they served this request, so it is refused. Send it again in {} s, or change it."
_ALONE: Final = (
    "Engines died while they served requests of this client. For {} s it may use only these engines, with one request "
    "at a time, and they are not free now."
)


class QuarantineError(RefusedError):
    """The request is refused because engines died of it, or of others of its client."""

    def __init__(self, reason: Quarantine, seconds: float) -> None:
        left = max(ceil(seconds), 1)
        if reason is Quarantine.REQUEST:
            super().__init__(500, _REFUSED.format(left), "InternalServerError")
        else:
            super().__init__(503, _ALONE.format(left), "ServiceUnavailableError")
            self.headers = {"retry-after": str(ceil(min(seconds, _RETRY_SECONDS)))}


class Isolation:
    """Owner of the verdicts in force in one worker."""

    def __init__(self, serving: WorkerState, admission: Admission, report: Callable[[Casualty], None]) -> None:
        self._serving = serving
        self._admission = admission
        self._report = report
        self._verdicts = Verdicts(0)
        self._changed: asyncio.Event | None = None
        """Set with the next verdicts, while somebody waits for them."""
        self._left: deque[tuple[float, Casualty]] = deque(maxlen=_MOST_LEFT)
        """What engines had of clients that have left, and when that was. Not reported: most engines live on."""
        self.active = False
        """Whether any request may have to be isolated."""

    def apply(self, verdicts: Verdicts) -> None:
        """Put verdicts in force."""
        self._verdicts = verdicts
        self.active = bool(verdicts.bodies or verdicts.clients)
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def admit(self, request: Request, exchange: Exchange, *, chosen: bool = False) -> None:
        """Refuse a request, or restrict it to some engines; raises QuarantineError.

        `chosen`: its engines are chosen, so one that was not restricted before is refused.
        """
        now = self._serving.engines.clock()
        self.apply(self._verdicts.at(now))
        client = self._admission.client_of(exchange, request.permit.name)
        until = self._verdicts.bodies.get((client, self.hash_of(request.body)))
        if until is not None:
            raise self._refuse(Quarantine.REQUEST, until - now)
        restriction = self._verdicts.clients.get(client)
        if restriction is None:
            return
        late = chosen and request.only is None
        request.restrict(restriction.engines)
        engines = request.selectable(self._serving.engines.snapshot).decode
        if late or not engines or not request.permit.exclude_others(client):
            raise self._refuse(Quarantine.CLIENT, restriction.until - now)

    def _refuse(self, reason: Quarantine, seconds: float) -> QuarantineError:
        self._serving.counters.quarantined[reason.value] += 1
        return QuarantineError(reason, seconds)

    async def deaths(
        self, failure: EngineFailure, choice: Choice, request: Request, exchange: Exchange
    ) -> frozenset[str]:
        """Return the engines that died in an attempt that failed. If one did, wait until both legs have ended.

        Raises RequestExpired.
        """
        if not may_have_died(failure):
            return frozenset()
        had = self._had(choice, request)
        if isinstance(failure, ConnectFailure):
            had = [endpoint for endpoint in had if endpoint.name == failure.endpoint]
        checks = self._serving.death_checks
        dead = await checks.among(had)
        if not dead:
            return dead
        self._note(had, dead, request.body, exchange, request.permit.name)
        if len(dead) < len(had):
            await _both_ended(request)
            more = await checks.among(endpoint for endpoint in had if endpoint.name not in dead)
            self._note(had, more, request.body, exchange, request.permit.name)
            dead |= more
        return dead

    def may_try_again(self, request: Request, exchange: Exchange) -> bool:
        """Whether a request that was on an engine when it died may go to one more."""
        if not self.active or request.only is not None:
            return True
        return self._admission.client_of(exchange, request.permit.name) not in self._verdicts.clients

    async def await_verdict(self, request: Request, exchange: Exchange) -> None:
        """Wait until the request is isolated in the whole gateway, but not for long."""
        key = (self._admission.client_of(exchange, request.permit.name), self.hash_of(request.body))
        try:
            async with asyncio.timeout(_VERDICT_SECONDS):
                while key not in self._verdicts.bodies:
                    if self._changed is None:
                        self._changed = asyncio.Event()
                    await self._changed.wait()
        except TimeoutError:
            return

    def after_stream(self, handoff: Handoff, exchange: Exchange, name: str | None) -> Coroutine[Any, Any, None]:
        """A stream has broken: report the body if its engine has died. Its client is read now: the head goes first."""
        return self._after_stream(handoff, self._admission.client_of(exchange, name))

    async def _after_stream(self, handoff: Handoff, client: str) -> None:
        endpoint = handoff.decode.endpoint
        if handoff.body and await self._serving.death_checks.died(endpoint):
            self._report(Casualty(endpoint.start, client, self._hash_of_answered(handoff)))

    def leave(self, choice: Choice, request: Request, exchange: Exchange) -> None:
        """The client has left in an attempt. Its request may kill an engine yet."""
        had = self._had(choice, request)
        if had and choice.prefill is not None and choice.prefill not in had:
            had.append(choice.prefill)  # in push orders, a P may get its leg yet, because D waits for it
        if had:
            self._remember(had, self.hash_of(request.body), exchange, request.permit.name)

    def leave_stream(self, handoff: Handoff, exchange: Exchange, name: str | None) -> None:
        """The client has left its stream."""
        if handoff.body:
            self._remember((handoff.decode.endpoint,), self._hash_of_answered(handoff), exchange, name)

    def observe(self, snapshot: Snapshot) -> None:
        """Report what lost engines had of clients that have left."""
        if not self._left:
            return
        oldest = self._serving.engines.clock() - _LEFT_SECONDS
        lost = {endpoint.start for endpoint in snapshot.everything if endpoint.ejected_by is Cause.LOST}
        recent = [(at, casualty) for at, casualty in self._left if at > oldest]
        self._left.clear()
        for at, casualty in recent:
            if casualty.start in lost:
                self._report(casualty)
            else:
                self._left.append((at, casualty))

    def identify(self, body: Body) -> tuple[LegBody, LegBody] | int:
        """Return what identifies a body while its answer is relayed. A hash of each small body would cost more."""
        if len(body.shared) + len(body.answer) <= _KEPT_BYTES:
            return body.shared, body.answer
        return self.hash_of(body)

    def hash_of(self, body: Body) -> int:
        """Return the hash of a body with the gateway's key; never 0."""
        return self._hash(body.shared, body.answer)

    def _hash_of_answered(self, handoff: Handoff) -> int:
        body = handoff.body
        return body if isinstance(body, int) else self._hash(*body)

    def _hash(self, shared: LegBody, answer: LegBody) -> int:
        return _hash(answer, _hash(shared, self._verdicts.key)) or 1

    def _had(self, choice: Choice, request: Request) -> list[Endpoint]:
        """Return the engines that may have received the request in its present attempt."""
        attempt = request.timeline.attempt
        names = {leg.endpoint for leg in request.timeline.legs if leg.attempt == attempt}
        known: dict[str, Endpoint] = {e.name: e for e in self._serving.engines.snapshot.everything}
        known.update((e.name, e) for e in (choice.decode, choice.prefill) if e is not None)
        found = {name: known[name] for name in names if name in known}
        found.update((e.name, e) for e in request.settled_at)
        return list(found.values())

    def _remember(self, had: Iterable[Endpoint], body: int, exchange: Exchange, name: str | None) -> None:
        client, now = self._admission.client_of(exchange, name), self._serving.engines.clock()
        for endpoint in had:
            self._left.append((now, Casualty(endpoint.start, client, body)))

    def _note(
        self, had: Iterable[Endpoint], dead: frozenset[str], body: Body, exchange: Exchange, name: str | None
    ) -> None:
        client = self._admission.client_of(exchange, name)
        for endpoint in had:
            if endpoint.name in dead:
                self._report(Casualty(endpoint.start, client, self.hash_of(body)))


async def _both_ended(request: Request) -> None:
    deadline = request.deadline
    try:
        async with asyncio.timeout_at(None if deadline == inf else deadline):
            await request.permit.settlements_ended()
    except TimeoutError:
        raise RequestExpired from None


def _hash(part: LegBody, seed: int) -> int:
    for piece in part.parts if isinstance(part, BodyParts) else (part,):
        seed = xxh3_64_intdigest(piece, seed)
    return seed
