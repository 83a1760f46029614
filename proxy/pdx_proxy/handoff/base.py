"""A hand-off: the two legs of one request, run as their family wants."""

from collections.abc import Container
from typing import Any, Final

import msgspec

from pdx_api.connectors.families import Identity, InPrefillAnswer, KVParams, Push
from pdx_proxy.endpoints.snapshot import Endpoint
from pdx_proxy.engines.backend import Backend
from pdx_proxy.engines.leg import Leg
from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.failures import BadAnswer, EngineFailure, Reason
from pdx_proxy.payload.prefill_answer import PREFILLED

NO_PARAMS: Final = "answered without kv_transfer_params: is its KV connector on?"
"""What is said of a P that has no connector."""
FULL: Final = 503
"""What an engine answers that takes no more requests."""
REFUSED_MAX_TOKENS: Final = 2**31 - 1
"""More tokens than any model's length: D refuses the leg, and where D tells P of it, P frees the blocks."""
HTTP_BAD_REQUEST: Final = b'"Bad Request"'
"""In a refusal of what D's HTTP server could not read as a request: its engine hears nothing of it, and so does P.

Members that shape the answer alone are in D's leg only, so that P takes what D refuses.
"""
_ENDED: Final = b'"finish_reason":"length"'
_NOTHING: Final = (Reason.STATUS, 502, b"")


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


class LegRefused(Exception):  # noqa: N818
    """An engine answered 4xx to a leg: the request is at fault, or too large for P.

    D is then asked for all of it as the client wrote it. Its words are the client's: those of a leg may speak of fields
    that the client never sent.
    """


def transfer_params(endpoint: Endpoint, answer: Answer) -> dict[str, Any] | None:
    """The parameters of a P's complete answer; None when it has nothing to hand over.

    Raises LegRefused for a 4xx and BadAnswer for what is no P's answer.
    """
    if 400 <= answer.status < 500:
        raise LegRefused
    if answer.status != 200:
        raise BadAnswer(endpoint.name, f"status {answer.status}", Reason.STATUS, answer.status, answer.document)
    try:
        found = PREFILLED.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(endpoint.name, "not an answer of vLLM", Reason.LOST, 502, b"") from error
    for choice in found.choices:
        if choice.finish_reason == "abort":
            raise BadAnswer(endpoint.name, "aborted by the engine", Reason.ABORT, 503, b"")
    return found.kv_transfer_params


def handed_over(endpoint: Endpoint, family: Push, answer: Answer) -> KVParams:
    """The parameters of a P's complete answer, empty where it has only to end by its length.

    Raises LegRefused, and BadAnswer also when P has nothing to hand over.
    """
    params = transfer_params(endpoint, answer)
    if not isinstance(family.identity, InPrefillAnswer):
        if _ENDED not in answer.body:
            raise BadAnswer(endpoint.name, "nothing to hand over: it has not ended by its length", *_NOTHING)
        return {}
    if params is None:
        raise BadAnswer(endpoint.name, NO_PARAMS, *_NOTHING)
    return params


def identity_of(endpoint: Endpoint, family: Push, params: KVParams) -> Identity | None:
    """The identity that a P's parameters name, or that it had when it was asked; raises BadAnswer for none."""
    if not isinstance(family.identity, InPrefillAnswer):
        return endpoint.identity
    try:
        return family.identity.read(params)
    except (KeyError, TypeError, ValueError) as error:
        detail = f"its kv_transfer_params name no identity: {error!r}"
        raise BadAnswer(endpoint.name, detail, Reason.LOST, 502, b"") from error


def has_answered(failure: Exception, statuses: Container[int]) -> bool:
    """Whether an engine has answered with one of these; an abort, which it began, is none."""
    return isinstance(failure, BadAnswer) and failure.reason is Reason.STATUS and failure.status in statuses


def blame(backend: Backend, prefill: Endpoint, decode: Endpoint, failure: EngineFailure) -> None:
    """Have the engine looked at that may be behind D's failure.

    A D that answers 500 is there: what it was told of P may be of an earlier start. One that answers 503 is full.
    """
    if not isinstance(failure, BadAnswer) or failure.reason is Reason.ABORT:
        backend.suspect(decode, failure)
    elif failure.status != 503:
        if all(e.name != prefill.name or e.start != prefill.start for e in backend.snapshot.prefill):
            backend.outliers.forgive(decode)  # P has been found out before: D does not fail on its own
        backend.suspect(prefill, f"its hand-off failed at {failure}")
