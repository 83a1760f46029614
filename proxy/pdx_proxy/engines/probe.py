"""Requests of the gateway's own, with no client behind them: whole ones and hand-offs, for warm-ups and canaries."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pdx_api.connectors import family_of
from pdx_api.connectors.families import AtBootstrap, Identity, KVParams, Pool, Push
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.bootstrap import ask_identity
from pdx_proxy.engines.engines import Engines
from pdx_proxy.engines.transfer_params import NO_PARAMS, handed_over, identity_of, transfer_params
from pdx_proxy.http.upstream.connection import Answer
from pdx_proxy.http.upstream.failures import BadAnswer, EngineFailure, Reason
from pdx_proxy.payload.request import body_of, prefill_body

PATH: Final = "/v1/completions"
_FOR_CLIENTS: Final = "remote_prefill_cached_tokens"
"""How much of the prompt P had cached. A D that is told says so in its usage in place of what came from P."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A hand-off that came to its end."""

    identity: Identity | None
    """P's, in a family that needs it."""
    told: KVParams
    """D's parameters; empty where P and D tell each other nothing."""
    answer: Answer
    """D's."""
    prefill_seconds: float
    handoff_seconds: float
    """From P's answer to the end of D's."""


async def hand_over(
    engines: Engines, prefill: Endpoint, decode: Endpoint, body: Mapping[str, Any], seconds: float
) -> Probe:
    """One whole P-first pair, so that nothing stays parked on P. Works in every order of a connector.

    Each leg may take `seconds`. Raises EngineFailure with the engine's name.
    """
    family = family_of(prefill.connector, prefill.order, prefill.spec.protocol)
    request_id, began = engines.new_id(), engines.clock()
    if isinstance(family, Pool):
        transfer_params(prefill, await _prefill(engines, prefill, body, None, seconds, request_id))
        finished = engines.clock()
        await asyncio.sleep(family.saved_after)
        answer = await serve(engines, decode, body, seconds, request_id)
        return Probe(None, {}, answer, finished - began, engines.clock() - finished)
    if isinstance(family, Push):
        identity, told = await _meet(engines, family, prefill, body, seconds, request_id)
    else:
        answer = await _prefill(engines, prefill, body, family.prefill_params, seconds, request_id)
        params = transfer_params(prefill, answer)
        if params is None:
            raise BadAnswer(prefill.name, NO_PARAMS, Reason.STATUS, 502, b"")
        identity, told = None, params
    finished = engines.clock()
    told = {name: value for name, value in told.items() if name != _FOR_CLIENTS}
    answer = await serve(engines, decode, {**body, "kv_transfer_params": told}, seconds, request_id)
    return Probe(identity, told, answer, finished - began, engines.clock() - finished)


async def _meet(
    engines: Engines, family: Push, prefill: Endpoint, body: Mapping[str, Any], seconds: float, request_id: str
) -> tuple[Identity | None, KVParams]:
    """P's identity and D's parameters, once P has finished."""
    asked = await ask_identity(engines, prefill, family.identity) if isinstance(family.identity, AtBootstrap) else None
    answer = await _prefill(engines, prefill, body, family.prefill_params(request_id), seconds, request_id)
    params = handed_over(prefill, family, answer)
    if asked is not None:
        return asked, family.decode_params(request_id, asked)
    return identity_of(prefill, family, params), params


async def _prefill(
    engines: Engines,
    prefill: Endpoint,
    body: Mapping[str, Any],
    params: KVParams | None,
    seconds: float,
    request_id: str,
) -> Answer:
    leg = engines.leg(prefill)
    try:
        await leg.connect()
        leg.send("POST", PATH, (("X-Request-Id", request_id),), prefill_body(body_of(body), params))
        answer = await leg.whole(seconds)
        if 400 <= answer.status < 500:
            raise _failed(prefill, answer)
        return answer
    finally:
        leg.end()


async def serve(
    engines: Engines, endpoint: Endpoint, body: Mapping[str, Any], seconds: float, request_id: str | None = None
) -> Answer:
    """A whole request to one engine, with an answer of 200; raises EngineFailure."""
    leg = engines.leg(endpoint)
    try:
        await leg.connect()
        headers = (("X-Request-Id", request_id or engines.new_id()),)
        leg.send("POST", PATH, headers, msgspec.json.encode(body))
        answer = await leg.opened(seconds)
        if answer.status != 200:
            raise _failed(endpoint, answer)
        return answer
    finally:
        leg.end()


async def page_of(engines: Engines, endpoint: Endpoint, path: str, seconds: float) -> bytes:
    """What an engine tells at a path beside its API; empty when it does not answer with 200."""
    leg = engines.leg(endpoint)
    try:
        await leg.connect()
        leg.send("GET", path, (), b"")
        answer = await leg.whole(seconds)
        return answer.body if answer.status == 200 else b""
    except EngineFailure:
        return b""
    finally:
        leg.end()


def _failed(endpoint: Endpoint, answer: Answer) -> BadAnswer:
    return BadAnswer(
        endpoint.name, f"answered {answer.status}: {answer.body[:200]!r}", Reason.STATUS, answer.status, answer.document
    )
