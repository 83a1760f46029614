"""What a request tries after a failed attempt (retries). Pure."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from pdx_api.names import PrefillFailure
from pdx_proxy.endpoints.endpoint import Pairing
from pdx_proxy.handoff.failures import HandoffFailure, symptom
from pdx_proxy.http.upstream.failures import EngineFailure, EngineUnready
from pdx_proxy.telemetry.counters import LocalPrefillReason

MOST_DEATHS: Final = 2
"""Engines that die while they have a request, before it is given up."""


@dataclass(frozen=True, slots=True)
class Pending:
    """What an attempt that failed leaves to decide."""

    failed: Pairing | None = None
    """The pair of the hand-off that failed, perhaps because KV did not move; None if none did."""
    free: bool = False
    """Whether the next attempt takes nothing from the retry budget."""
    paid: bool = False
    """Whether the present attempt has taken something from it."""
    blame: Callable[[], None] | None = None
    """Counts the last failure against its engines; None: it is counted, or counts against none."""
    at_fault: bool = False
    """Whether two answers have shown that the request is at fault, so that no attempt follows."""


NOTHING: Final = Pending()


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempts of a request so far, as far as the next one depends on them."""

    policy: PrefillFailure
    """What follows when a P fails."""
    left: int
    """How many attempts may follow."""
    avoid: frozenset[str] = frozenset()
    """The engines that have failed."""
    last: EngineFailure | None = None
    """The failure of the last attempt that failed."""
    refused: LocalPrefillReason | None = None
    """Why P or D refused a leg that the gateway had changed; None if none did."""
    whole: bool = False
    """Whether one engine must serve the request, although it may be divided."""
    dead: frozenset[str] = frozenset()
    """The engines that have died while they had the request."""
    forbidden: bool = False
    """Whether its client is isolated by now, so that no attempt follows."""
    at_prefill: bool = False
    """Whether a P, rather than a D, must serve the request."""
    pending: Pending = NOTHING
    """What the last attempt that failed leaves to decide."""

    def splits(self, divisible: bool) -> bool:
        """Whether the next attempt may split the request. The last one does not, unless D must never prefill."""
        if not divisible or self.whole:
            return False
        return self.left > 1 or self.last is None or self.policy is PrefillFailure.FAIL

    def after_refusal(self, reason: LocalPrefillReason) -> "Retry":
        """An engine has refused its leg: one engine gets the request as the client wrote it, even if no try is left."""
        return replace(self, left=max(self.left - 1, 1), refused=reason, whole=True)

    @property
    def is_deadly(self) -> bool:
        """Whether the request is not tried again because engines died of it."""
        return len(self.dead) >= MOST_DEATHS or self.forbidden

    def repeats(self, failure: HandoffFailure) -> bool:
        """Whether the engine shows the same as another one before, so that the request is at fault.

        If no other D is left, the same D may show it: first in a hand-off, then when it serves the request alone.
        """
        found = symptom(failure.cause)
        if found is None or self.last is None or self.pending.blame is None or found != symptom(self.last):
            return False
        return failure.endpoint.name not in self.avoid or self.pending.failed is not None

    def after_repetition(self, failure: HandoffFailure) -> "Retry":
        """The request is at fault: no attempt follows, and neither engine is blamed."""
        return replace(self, left=0, last=failure.cause, pending=replace(self.pending, blame=None, at_fault=True))

    def after_payment(self) -> "Retry":
        """The retry budget has paid for the next attempt."""
        return replace(self, pending=replace(self.pending, paid=True))

    def after_failure(self, failure: HandoffFailure, *, by_prefill: bool) -> "Retry":
        """An engine has failed; `by_prefill`: it is the attempt's P.

        If KV may not have moved, one engine serves the request, even if no try is left, unless D must never prefill. An
        error of a P that lives may be the request's fault. A whole request at a D shows that with the fewest legs.
        """
        fails = self.policy is PrefillFailure.FAIL
        whole = by_prefill and (self.policy is PrefillFailure.LOCAL or symptom(failure.cause) is not None)
        over = failure.cause.local or (by_prefill and fails)
        alone = failure.whole or (failure.pair is not None and not fails)
        unready = isinstance(failure.cause, EngineUnready)  # it has done no work, so another attempt adds no load
        return replace(
            self,
            left=0 if over else max(self.left - 1, int(alone)),
            avoid=self.avoid | {failure.endpoint.name},
            last=failure.cause,
            whole=self.whole or alone or whole,
            pending=Pending(failure.pair or self.pending.failed, alone or unready, blame=failure.blame),
        )

    def after_deaths(self, dead: frozenset[str], *, of_decode: bool) -> "Retry":
        """Engines have died in the last attempt. One more engine may get the request, and none after two deaths.

        `of_decode`: one of them answers clients. The next attempt is then a P's, if there is one, so that a request
        kills at most one engine of each role.
        """
        found = self.dead | dead
        return replace(
            self,
            left=0 if len(found) >= MOST_DEATHS else min(self.left, 1),
            avoid=self.avoid | dead,
            dead=found,
            whole=True,
            pending=NOTHING,
            at_prefill=of_decode,
        )
