"""What a request tries after a failed attempt (retries). Pure."""

from dataclasses import dataclass, replace

from pdx_api.names import PrefillFailure
from pdx_proxy.handoff.failures import HandoffFailure
from pdx_proxy.http.upstream.failures import EngineFailure
from pdx_proxy.telemetry.counters import LocalPrefillReason


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

    def splits(self, divisible: bool) -> bool:
        """Whether the next attempt may split the request. The last one does not, unless D must never prefill."""
        if not divisible or self.whole:
            return False
        return self.left > 1 or self.last is None or self.policy is PrefillFailure.FAIL

    def after_refusal(self, reason: LocalPrefillReason) -> "Retry":
        """An engine has refused its leg: one engine gets the request as the client wrote it, even if no try is left."""
        return replace(self, left=max(self.left - 1, 1), refused=reason, whole=True)

    def after_failure(self, failure: HandoffFailure, *, by_prefill: bool) -> "Retry":
        """An engine has failed; `by_prefill`: it is the attempt's P."""
        over = failure.cause.local or (by_prefill and self.policy is PrefillFailure.FAIL)
        local = by_prefill and self.policy is PrefillFailure.LOCAL
        return replace(
            self,
            left=0 if over else self.left - 1,
            avoid=self.avoid | {failure.endpoint.name},
            last=failure.cause,
            whole=self.whole or failure.whole or local,
        )
