"""Requests of the gateway's own, with no client behind them: whole ones and hand-offs, for warm-ups and canaries."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from pdx_api.connectors import family_of
from pdx_api.connectors.families import KVParams, Pool
from pdx_proxy.backend import Backend
from pdx_proxy.connection import Answer
from pdx_proxy.endpoints import Endpoint
from pdx_proxy.failures import BadAnswer, Reason
from pdx_proxy.handoff import LegRefused, transfer_params
from pdx_proxy.request import body_of, prefill_body

PATH: Final = "/v1/completions"
NO_PARAMS: Final = "answered without kv_transfer_params: is its KV connector on?"
"""What is said of a P that has no connector."""
_FOR_CLIENTS: Final = "remote_prefill_cached_tokens"
"""How much of the prompt P had cached. A D that is told says so in its usage in place of what came from P."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A hand-off that came to its end."""

    params: KVParams
    """What P has answered; empty where P and D tell each other nothing."""
    answer: Answer
    """D's."""
    prefill_seconds: float
    handoff_seconds: float
    """From P's answer to the end of D's."""


async def hand_over(
    backend: Backend, prefill: Endpoint, decode: Endpoint, body: Mapping[str, Any], seconds: float
) -> Trial:
    """One whole P-first pair, so that nothing stays parked on P. Works in every order of a connector.

    Each leg may take `seconds`. Raises EngineFailure with the engine's name.
    """
    request_id, began = backend.new_id(), backend.clock()
    params = await _prefill(backend, prefill, body, seconds, request_id)
    finished = backend.clock()
    family = family_of(prefill.connector, prefill.order, prefill.spec.protocol)
    if isinstance(family, Pool):
        await asyncio.sleep(family.saved_after)
        answer = await serve(backend, decode, body, seconds, request_id)
        return Trial({}, answer, finished - began, backend.clock() - finished)
    assert params is not None, "a P of another family that has nothing to tell has failed"
    told = {name: value for name, value in params.items() if name != _FOR_CLIENTS}
    answer = await serve(backend, decode, {**body, "kv_transfer_params": told}, seconds, request_id)
    return Trial(params, answer, finished - began, backend.clock() - finished)


async def _prefill(
    backend: Backend, prefill: Endpoint, body: Mapping[str, Any], seconds: float, request_id: str
) -> KVParams | None:
    family = family_of(prefill.connector, prefill.order, prefill.spec.protocol)
    leg = backend.leg(prefill)
    try:
        await leg.connect()
        leg_body = prefill_body(body_of(body), None if isinstance(family, Pool) else family.prefill_params)
        leg.send("POST", PATH, (("X-Request-Id", request_id),), leg_body)
        params = transfer_params(prefill, await leg.whole(seconds))
    except LegRefused:
        raise _failed(prefill, leg.answer) from None
    finally:
        leg.end()
    if params is None and not isinstance(family, Pool):
        raise BadAnswer(prefill.name, NO_PARAMS, Reason.STATUS, 502, b"")
    return params


async def serve(
    backend: Backend, endpoint: Endpoint, body: Mapping[str, Any], seconds: float, request_id: str | None = None
) -> Answer:
    """A whole request to one engine, with an answer of 200; raises EngineFailure."""
    leg = backend.leg(endpoint)
    try:
        await leg.connect()
        headers = (("X-Request-Id", request_id or backend.new_id()),)
        leg.send("POST", PATH, headers, orjson.dumps(body))
        answer = await leg.opened(seconds)
        if answer.status != 200:
            raise _failed(endpoint, answer)
        return answer
    finally:
        leg.end()


def _failed(endpoint: Endpoint, answer: Answer) -> BadAnswer:
    return BadAnswer(
        endpoint.name, f"answered {answer.status}: {answer.body[:200]!r}", Reason.STATUS, answer.status, answer.document
    )
