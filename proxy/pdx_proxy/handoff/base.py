"""A hand-off: the two legs of one request, run as their family wants."""

from collections.abc import Container
from typing import Final

from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.leg import Leg
from pdx_proxy.handoff.serving_state import ServingState
from pdx_proxy.http.upstream.failures import BadAnswer, EngineFailure, Reason

FULL: Final = 503
"""What an engine answers that takes no more requests."""
REFUSED_MAX_TOKENS: Final = 2**31 - 1
"""More tokens than any model's length: D refuses the leg, and where D tells P of it, P frees the blocks."""
HTTP_BAD_REQUEST: Final = b'"Bad Request"'
"""In a refusal of what D's HTTP server could not read as a request: its engine hears nothing of it, and so does P.

Members that shape the answer alone are in D's leg only, so that P takes what D refuses.
"""


class Handoff:
    """A hand-off whose D has opened its answer. The leg belongs to whoever holds this."""

    __slots__ = ("decode", "handoff_seconds", "prefill", "prefill_seconds")

    def __init__(
        self,
        decode: Leg,
        prefill: Endpoint | None = None,
        prefill_seconds: float = 0.0,
        handoff_seconds: float = 0.0,
    ) -> None:
        self.decode = decode
        self.prefill = prefill
        self.prefill_seconds = prefill_seconds
        self.handoff_seconds = handoff_seconds


class HandoffFailure(Exception):  # noqa: N818 (a failure of engines, not an error of the gateway)
    """An attempt failed before the first event, and what it had begun is settled or being settled."""

    def __init__(self, endpoint: Endpoint, cause: EngineFailure, *, begun: bool = True) -> None:
        super().__init__(str(cause))
        self.endpoint = endpoint
        """The engine to avoid in the next attempt."""
        self.cause = cause
        self.begun = begun
        """Whether an engine has got anything of the request: if none has, another attempt adds no load."""


def has_answered(failure: Exception, statuses: Container[int]) -> bool:
    """Whether an engine has answered with one of these; an abort, which it began, is none."""
    return isinstance(failure, BadAnswer) and failure.reason is Reason.STATUS and failure.status in statuses


def blame(serving: ServingState, prefill: Endpoint, decode: Endpoint, failure: EngineFailure) -> None:
    """Have the engine looked at that may be behind D's failure.

    A D that answers 500 is there: what it was told of P may be of an earlier start. One that answers 503 is full.
    """
    if not isinstance(failure, BadAnswer) or failure.reason is Reason.ABORT:
        serving.engines.suspect(decode, failure)
    elif failure.status != 503:
        if all(e.name != prefill.name or e.generation != prefill.generation for e in serving.engines.snapshot.prefill):
            serving.engines.outliers.forgive(decode)  # P has been found out before: D does not fail on its own
        serving.engines.suspect(prefill, f"its hand-off failed at {failure}")
