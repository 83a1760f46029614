"""Which engine a failed hand-off points to. Pure."""

from enum import Enum

from pdx_proxy.http.upstream.failures import BadAnswer, EngineFailure, Reason

_FULL = 503


class Culprit(Enum):
    """The engine that must be probed after D's leg of a hand-off failed."""

    NONE = "none"
    """D is full."""
    DECODE = "decode"
    """D was lost, hung or aborted the request."""
    PREFILL = "prefill"
    """D is alive and could not use P's KV: P may have restarted since its parameters were made."""


def attribute(failure: EngineFailure) -> Culprit:
    """Attribute a failure of D's leg to an engine."""
    if not isinstance(failure, BadAnswer) or failure.reason is Reason.ABORT:
        return Culprit.DECODE
    return Culprit.NONE if failure.status == _FULL else Culprit.PREFILL
