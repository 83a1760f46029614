"""What a P's complete answer hands over to D: its KV transfer parameters, and P's identity."""

from typing import Any, Final, cast

import msgspec

from pdx_api.connectors.families import Identity, InPrefillAnswer, KVParams, Pull, Push
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.param_checks import are_usual, fault_of
from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.failures import BadAnswer, Reason
from pdx_proxy.payload.apis import API, COMPLETIONS_API
from pdx_proxy.payload.prefill_answer import NESTED, RAW

NO_PARAMS: Final = "answered without kv_transfer_params: is its KV connector on?"
"""Detail of the failure of a P that has no connector."""


class LegRefused(Exception):  # noqa: N818 (the engine's refusal, not an error of the gateway)
    """An engine answered 4xx to a leg: the request is at fault, or too large for P.

    The request is then sent unmodified to D and D's answer returned, because a leg's error message may mention fields
    that the gateway added.
    """


class PrefillStopped(LegRefused):
    """P's one token was a stop token, so its connector hands over nothing. D gets the whole request."""


class NothingHandedOverError(BadAnswer):
    """A P answered 200 and has nothing to hand over."""

    def __init__(self, endpoint: str, detail: str) -> None:
        super().__init__(endpoint, detail, Reason.STATUS, 502, b"")


def transfer_params(endpoint: Endpoint, answer: Answer, api: API = COMPLETIONS_API) -> dict[str, Any] | None:
    """Return the parameters of a P's complete answer, or None when it has nothing to hand over.

    Raises LegRefused for a 4xx, and BadAnswer for an answer that is not a P's, or whose parameters could end a D.
    """
    if 400 <= answer.status < 500:
        raise LegRefused
    if answer.status != 200:
        detail, status = f"status {answer.status}", 502 if answer.status < 500 else answer.status
        document = answer.document if answer.complete else b""  # the beginning of a long one is no JSON
        raise BadAnswer(endpoint.name, detail, Reason.STATUS, status, document, answer.text)
    body, nested = answer.body, False
    try:
        try:
            aborted, params = api.read_prefill(body)
        except msgspec.ValidationError:
            nested = True
            aborted, params = api.read_prefill(body, NESTED)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(endpoint.name, "not an answer of vLLM", Reason.LOST, 502, b"") from error
    if aborted:
        raise BadAnswer(endpoint.name, "aborted by the engine", Reason.ABORT, 503, b"")
    family = endpoint.family
    if params is not None and isinstance(family, Pull):
        fault = fault_of(params, family.answered, len(body), nested=nested)
        if fault:
            detail = f"answered kv_transfer_params that no decode engine may read: {fault}"
            raise BadAnswer(endpoint.name, detail, Reason.LOST, 502, b"")
    return cast("dict[str, Any] | None", params)


def params_to_relay(endpoint: Endpoint, answer: Answer, api: API) -> KVParams | msgspec.Raw | None:
    """As `transfer_params`, for a D that gets them as they are: as bytes, if they are what the connector answers."""
    family = endpoint.family
    if answer.status == 200 and isinstance(family, Pull) and family.answered:
        try:
            aborted, params = api.read_prefill(answer.body, RAW)
            if not aborted and params is not None and are_usual(params, family.answered):
                return cast("msgspec.Raw", params)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # none, or what has to be described
    return transfer_params(endpoint, answer, api)


def needs_length(family: Push) -> bool:
    """Whether P hands over only what has ended by its length (Mooncake's `request_finished`)."""
    return not isinstance(family.identity, InPrefillAnswer)


def handed_over(endpoint: Endpoint, family: Push, answer: Answer, api: API = COMPLETIONS_API) -> KVParams:
    """Return the parameters of a P's complete answer; empty where P only has to finish by length.

    Raises LegRefused (PrefillStopped where P may stop), and BadAnswer also when P has nothing to hand over.
    """
    params = transfer_params(endpoint, answer, api)
    if needs_length(family):
        if api.ended in answer.body:
            return {}
        if api.may_stop:
            raise PrefillStopped
        raise NothingHandedOverError(endpoint.name, "nothing to hand over: it has not ended by its length")
    if params is None:
        raise NothingHandedOverError(endpoint.name, NO_PARAMS)
    return params


def identity_of(endpoint: Endpoint, family: Push, params: KVParams) -> Identity | None:
    """Return the identity in a P's parameters, or else the one from its warm-up; raises BadAnswer for none."""
    if not isinstance(family.identity, InPrefillAnswer):
        return endpoint.identity
    try:
        return family.identity.read(params)
    except (KeyError, TypeError, ValueError) as error:
        detail = f"its kv_transfer_params name no identity: {error!r}"
        raise BadAnswer(endpoint.name, detail, Reason.LOST, 502, b"") from error
