"""Probes: whole requests and hand-offs without a client, for warm-up and verification."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pdx_api.connectors.families import AtBootstrap, Identity, KVParams, Pool, Push
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.bootstrap import query_identity
from pdx_proxy.engines.transfer_params import NO_PARAMS, handed_over, identity_of, transfer_params
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.http.routes import MODELS
from pdx_proxy.http.upstream.answer import Answer, one_line
from pdx_proxy.http.upstream.failures import BadAnswer, DeadlineExceeded, EngineFailure, EngineUnready, Reason
from pdx_proxy.payload.body import body_of, prefill_body

PATH: Final = "/v1/completions"
_POOLING_PATHS: Final = ("/pooling", "/v1/embeddings", "/classify")
"""One of them exists for every pooling model (vLLM 0.32 entrypoints/pooling). Each accepts a text as `input`."""
_UNSUPPORTED: Final = (404, 501)
"""Statuses of a path that the model does not support: unregistered, or registered without a handler."""
_FOR_CLIENTS: Final = "remote_prefill_cached_tokens"
"""How many prompt tokens P had cached. A D that receives it reports it as its usage, instead of the tokens from P."""
_METRICS: Final = "/metrics"
_PAUSES: Final = "/is_paused"
_PAUSES_SECONDS: Final = 2.0
_METRICS_BYTES: Final = 512 * 1024
_RANK_BYTES: Final = 96 * 1024
"""A page of metrics may have so many more for each rank. vLLM's has 60 kB for each."""
_PAGE_BYTES: Final = 2 * 1024 * 1024
"""The largest page of models, with adapters."""
_SMALL_BYTES: Final = 64 * 1024
"""The largest other page."""
_TEXT: Final = 640
"""Characters of an engine's own text about a failure that are searched."""
_UNIQUE: Final = re.compile(r"\b[\w-]*[0-9a-f]{8}[\w-]*")
"""Ids of requests and addresses in memory."""


class _Pause(msgspec.Struct):
    """vLLM's answer to GET /is_paused."""

    is_paused: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a hand-off."""

    identity: Identity | None
    """P's identity, in families that need it."""
    decode_params: KVParams
    """D's parameters; empty in the family pool."""
    answer: Answer
    """D's answer."""
    prefill_seconds: float
    handoff_seconds: float
    """From the end of P's answer to the end of D's."""


async def hand_over(
    engines: Engines, prefill: Endpoint, decode: Endpoint, body: Mapping[str, Any], seconds: float
) -> Probe:
    """Run both legs one after the other, P first, so that P keeps no blocks. Works in every order of a connector.

    Each leg may take `seconds`. Raises EngineFailure with the engine's name.
    """
    family, request_id, began = prefill.family, engines.new_id(), engines.clock()
    if isinstance(family, Pool):
        transfer_params(prefill, await _prefill(engines, prefill, body, None, seconds, request_id))
        finished = engines.clock()
        await asyncio.sleep(family.saved_after)
        answer = await serve(engines, decode, body, seconds, request_id)
        return Probe(None, {}, answer, finished - began, engines.clock() - finished)
    if isinstance(family, Push):
        identity, decode_params = await _prefill_push(engines, family, prefill, body, seconds, request_id)
    else:
        answer = await _prefill(engines, prefill, body, family.prefill_params, seconds, request_id)
        params = transfer_params(prefill, answer)
        if params is None:
            raise BadAnswer(prefill.name, NO_PARAMS, Reason.STATUS, 502, b"")
        identity, decode_params = None, params
    finished = engines.clock()
    decode_params = {name: value for name, value in decode_params.items() if name != _FOR_CLIENTS}
    answer = await serve(engines, decode, {**body, "kv_transfer_params": decode_params}, seconds, request_id)
    return Probe(identity, decode_params, answer, finished - began, engines.clock() - finished)


async def _prefill_push(
    engines: Engines, family: Push, prefill: Endpoint, body: Mapping[str, Any], seconds: float, request_id: str
) -> tuple[Identity | None, KVParams]:
    """Run P's leg of a push; return P's identity and D's parameters."""
    source = family.identity
    identity = await query_identity(engines, prefill, source) if isinstance(source, AtBootstrap) else None
    answer = await _prefill(engines, prefill, body, family.prefill_params(request_id), seconds, request_id)
    params = handed_over(prefill, family, answer)
    if identity is not None:
        return identity, family.decode_params(request_id, identity)
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
        if answer.status >= 400:
            raise _failed(prefill, answer)
        return answer
    finally:
        leg.end()


async def serve_any(engines: Engines, endpoint: Endpoint, body: Mapping[str, Any], seconds: float) -> None:
    """Send a whole request to an engine of any kind of model; raises EngineFailure unless it answers 200.

    An engine with a pooling model has no `/v1/completions`, and only those paths that its tasks support.
    """
    try:
        await serve(engines, endpoint, body, seconds)
        return
    except BadAnswer as failure:
        if failure.status not in _UNSUPPORTED:
            raise
        last = failure
    for path in _POOLING_PATHS:
        try:
            await serve(engines, endpoint, {"input": body["prompt"]}, seconds, path=path)
            return
        except BadAnswer as failure:
            last = failure
    raise last


async def serve(
    engines: Engines,
    endpoint: Endpoint,
    body: Mapping[str, Any],
    seconds: float,
    request_id: str | None = None,
    path: str = PATH,
) -> Answer:
    """Send a whole request to one engine; raises EngineFailure unless it answers 200."""
    leg = engines.leg(endpoint)
    try:
        await leg.connect()
        headers = (("X-Request-Id", request_id or engines.new_id()),)
        leg.send("POST", path, headers, msgspec.json.encode(body))
        answer = await leg.first_event(seconds)
        if answer.status != 200:
            raise _failed(endpoint, answer)
        return answer
    except EngineUnready:
        raise
    except BadAnswer as failure:
        text = error_text(failure.body)
        if not text or text in failure.detail:
            raise
        detail = f"{failure.detail}: {text}"
        raise BadAnswer(endpoint.name, detail, failure.reason, failure.status, failure.body) from failure
    finally:
        leg.end()


async def answers_health(engines: Engines, endpoint: Endpoint, seconds: float) -> None:
    """GET /health over a new connection; raises EngineFailure unless it is answered in time, and not with 5xx.

    vLLM answers 503 when its EngineCore has died (entrypoints/serve/instrumentator/health.py).
    """
    leg = engines.leg(endpoint)
    try:
        async with asyncio.timeout(seconds):
            await leg.connect_fresh()
            leg.send("GET", "/health", (), b"")
            answer = await leg.whole(seconds, most=_SMALL_BYTES)
    except TimeoutError:
        raise DeadlineExceeded(endpoint.name, f"no answer from /health within {seconds:g} s") from None
    finally:
        leg.end()
    if answer.status >= 500:
        raise _failed(endpoint, answer)


async def is_paused(engines: Engines, endpoint: Endpoint) -> bool:
    """Whether an engine reports that it is paused. Without vLLM's routes for that it reports nothing."""
    return read_pause(await page_of(engines, endpoint, _PAUSES, _PAUSES_SECONDS))


def read_pause(page: bytes) -> bool:
    """Read vLLM's answer to GET /is_paused; False for anything else."""
    try:
        return msgspec.json.decode(page, type=_Pause).is_paused
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


async def page_of(engines: Engines, endpoint: Endpoint, path: str, seconds: float) -> bytes:
    """GET a page of an engine; empty unless it answers 200."""
    try:
        return await fetch(engines, endpoint, path, seconds)
    except EngineFailure:
        return b""


async def fetch(engines: Engines, endpoint: Endpoint, path: str, seconds: float) -> bytes:
    """GET a page of an engine; empty if it answers another status than 200. Raises EngineFailure without an answer."""
    leg = engines.leg(endpoint)
    try:
        await leg.connect()
        leg.send("GET", path, (), b"")
        answer = await leg.whole(seconds, most=_most_bytes(endpoint, path))
        return answer.body if answer.status == 200 else b""
    finally:
        leg.end()


def _most_bytes(endpoint: Endpoint, path: str) -> int:
    if path == _METRICS:
        return _METRICS_BYTES + endpoint.spec.ranks * _RANK_BYTES
    return _PAGE_BYTES if path == MODELS else _SMALL_BYTES


def _failed(endpoint: Endpoint, answer: Answer) -> BadAnswer:
    text = error_text(answer.body)
    detail = f"status {answer.status}: {text}" if text else f"status {answer.status}"
    return BadAnswer(endpoint.name, detail, Reason.STATUS, answer.status, answer.document)


def error_text(body: bytes) -> str:
    """Return the engine's own text about a failure: the message of its JSON, else the start of the body.

    IDs and addresses differ with each request, and the text goes into the object's status: an ellipsis replaces them.
    """
    try:
        found = msgspec.json.decode(body)
        error = found.get("error", found)
        text = str(error["message"] if isinstance(error, dict) else error)[:_TEXT]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError, KeyError):
        text = body[:_TEXT].decode(errors="replace")
    return one_line(_UNIQUE.sub("…", text))
