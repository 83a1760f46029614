"""The failures of a hand-off, and what engines' refusals mean. Pure."""

from collections.abc import Callable, Container
from typing import Final

from pdx_proxy.endpoints.endpoint import Endpoint, Pairing
from pdx_proxy.engines.transfer_params import NothingHandedOverError
from pdx_proxy.http.upstream.failures import BadAnswer, ClosedConnection, EngineFailure, Reason

FULL: Final = 503
"""The status of an engine that accepts no more requests."""
REFUSED_MAX_TOKENS: Final = 2**31 - 1
"""More tokens than any model's length: D refuses the leg. Where D notifies P of that, P frees the blocks."""
HTTP_BAD_REQUEST: Final = b'"Bad Request"'
"""Marks a 400 from D's HTTP server (invalid request). D's engine never received the leg, so D does not notify P.

P may accept what D refuses: fields that affect the answer only are not in P's leg.
"""


class PrefillEnded(Exception):  # noqa: N818 (a failure of an engine, not an error of the gateway)
    """Ends D's wait in a push: P has failed, so its KV does not come."""

    def __init__(self, failure: EngineFailure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class KVOverdue(Exception):  # noqa: N818
    """Ends D's wait in a push: P has finished, and D shows no first event in time."""

    def __init__(self, failure: EngineFailure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class HandoffFailure(Exception):  # noqa: N818 (a failure of engines, not an error of the gateway)
    """An attempt failed before the first event. Everything that it started is settled or being settled."""

    def __init__(
        self,
        endpoint: Endpoint,
        cause: EngineFailure,
        *,
        begun: bool = True,
        whole: bool = False,
        pair: Pairing | None = None,
        blame: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(str(cause))
        self.endpoint = endpoint
        """The engine to avoid in the next attempt."""
        self.cause = cause
        self.begun = begun
        """Whether an engine has received anything of the request. If not, another attempt adds no load."""
        self.whole = whole
        """Whether the next attempt must not split: the request would wait longer than a push survives."""
        self.pair = pair
        """The pair within which KV may not have moved, although both engines answer; None for any other failure."""
        self.blame = blame
        """Counts the failure against engines, unless it turns out to be the request's fault; None: nothing to count."""


def has_answered(failure: Exception, statuses: Container[int]) -> bool:
    """Whether the failure is an answer with one of these statuses. An abort is not: the engine had started the work."""
    return isinstance(failure, BadAnswer) and failure.reason is Reason.STATUS and failure.status in statuses


def symptom(failure: EngineFailure) -> tuple[Reason, int] | None:
    """Return what shows that the request is at fault, if a second engine fails with the same; None: nothing does.

    It is a status from 500, but not the 503 of a full engine, or the place where an answer broke off.
    """
    if isinstance(failure, BadAnswer):
        answered = failure.reason is Reason.STATUS or failure.reason is Reason.ERROR_EVENT
        by_engine = answered and failure.status >= 500 and failure.status != FULL
        return (
            (Reason.STATUS, failure.status) if by_engine and not isinstance(failure, NothingHandedOverError) else None
        )
    if isinstance(failure, ClosedConnection) and failure.events >= 0 and not failure.local:
        return Reason.LOST, failure.events
    return None


def judge(failure: EngineFailure, blame: Callable[[], None]) -> Callable[[], None] | None:
    """Count a failure against engines now, or return what counts it later: a second engine may show the same."""
    if symptom(failure) is not None:
        return blame
    blame()
    return None


def reached_engine(refusal: bytes) -> bool:
    """Whether a 4xx with this body comes from D's engine and not from its HTTP server."""
    return HTTP_BAD_REQUEST not in refusal
