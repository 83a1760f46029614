"""Which side of a hand-off a failure of D's leg points to. Pure."""

from enum import Enum

from pdx_proxy.http.upstream.failures import BadAnswer, DeadlineExceeded, EngineFailure, Reason

_FULL = 503


class Culprit(Enum):
    """The side that a failure of D's leg points to."""

    NONE = "none"
    """D is full, or the gateway at its own limits."""
    DECODE = "decode"
    """D was lost, too slow, or aborted the request."""
    EITHER = "either"
    """D answered an error: D failed, or it could not use P's KV."""


def attribute(failure: EngineFailure) -> Culprit:
    """Attribute a failure of D's leg."""
    if failure.local:
        return Culprit.NONE
    if not isinstance(failure, BadAnswer) or failure.reason is Reason.ABORT:
        return Culprit.DECODE
    return Culprit.NONE if failure.status == _FULL else Culprit.EITHER


def may_be_kv(failure: EngineFailure) -> bool:
    """Whether D's leg may have failed because KV did not move. An absent, full or aborting D has another reason."""
    return isinstance(failure, DeadlineExceeded) or attribute(failure) is Culprit.EITHER
