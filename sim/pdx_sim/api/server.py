"""The routes of vLLM's HTTP API, and /sim/state and /sim/faults."""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from aiohttp import web

from pdx_api.names import Role
from pdx_api.vllm.versions import abilities, minor
from pdx_sim.api.answers import Choice
from pdx_sim.api.apis import read_call, writer_of
from pdx_sim.api.delivery import (
    ConnectionCutError,
    cut,
    deliver_refusal,
    deliver_stream,
    deliver_whole,
    json_answer,
)
from pdx_sim.api.legs import accepts, has_id, violations
from pdx_sim.api.messages import anthropic_error, count_tokens
from pdx_sim.api.paths import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from pdx_sim.api.pauses import Pauses
from pdx_sim.api.request import APIError, Call, decode_body, leg_of
from pdx_sim.api.server_errors import check as check_server_errors
from pdx_sim.core.counters import Violation
from pdx_sim.core.engine_core import Core
from pdx_sim.core.sequence import Finish, Leg, Sequence
from pdx_sim.core.tokens import chat_tokens, detokenize, digest_of, tokenize
from pdx_sim.faults import Fault, FaultKind, Faults, fault_of
from pdx_sim.transfer.connector import KVConnector, Station
from pdx_sim.transfer.storage import Storage

_MAX_BODY: Final = 64 << 20
_GARBAGE: Final = b"\x16\x03\x01\x00\xff not http\r\n\r\n"
_CLOSES_AFTER: Final = 0.005
"""Seconds between an answer and the end of its connection."""
_REASONS: Final[dict[int, str]] = {
    400: "BadRequestError",
    404: "NotFoundError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """A generation request as it was received."""

    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: dict[str, Any]
    leg: Leg
    raw: bytes
    """The body's bytes."""


class Host(Protocol):
    """The engine, as the API uses it."""

    station: Station
    core: Core
    connector: KVConnector
    storage: Storage | None
    faults: Faults
    seen: deque[Seen]
    draining: bool
    dead: bool
    scaling: str
    """What every request but `/health` gets, as the text of a 503; empty: nothing."""

    def die(self) -> None:
        """The EngineCore dies."""

    def state(self) -> dict[str, Any]:
        """The body of /sim/state."""

    def metrics(self) -> str:
        """The page /metrics."""


class Api:
    """The routes of one start of an engine."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._station = host.station
        self._settings = host.station.settings
        self._counts = host.station.counts
        self._pauses = Pauses(host, host.station.settings)

    def application(self) -> web.Application:
        """The web application."""
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[self._scale, _shape_errors, self._authenticate])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/ping", self._health),
                web.get("/load", self._load),
                web.get("/version", self._version),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                *(web.post(path, self._generate) for path in (COMPLETIONS, CHAT, MESSAGES, RESPONSES)),
                web.post(f"{MESSAGES}/count_tokens", self._count_tokens),
                web.post("/v1/embeddings", self._embeddings),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
                *self._pauses.routes(),
                web.get("/sim/state", self._state),
                web.post("/sim/faults", self._set_faults),
            ]
        )
        return app

    @web.middleware
    async def _scale(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Refuse whatever comes while ranks are added or removed (entrypoints/serve/elastic_ep/middleware.py)."""
        text = self._host.scaling
        if text and request.path != "/health" and not request.path.startswith("/sim/"):
            return json_answer({"error": text}, 503)
        response: web.StreamResponse = await handler(request)
        return response

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Require the key as vLLM does, and count the requests without it."""
        key = self._settings.api_key
        if key and request.path.startswith("/v1") and request.headers.get("Authorization") != f"Bearer {key}":
            self._counts.unauthorized += 1
            return web.json_response({"error": "Unauthorized"}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    def _dead(self) -> APIError:
        return APIError(500, abilities(minor(self._settings.version)).dead_text, "InternalServerError")

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self._host.dead else 200)

    async def _load(self, request: web.Request) -> web.Response:
        return json_answer({"server_load": self._host.core.live})

    async def _version(self, request: web.Request) -> web.Response:
        return json_answer({"version": self._settings.version})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self._host.metrics(), content_type="text/plain", charset="utf-8")

    async def _models(self, request: web.Request) -> web.Response:
        name = self._settings.model
        card = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "vllm", "root": name}
        card |= {"parent": None, "max_model_len": self._settings.max_model_len, "permission": []}
        return json_answer({"object": "list", "data": [card]})

    async def _state(self, request: web.Request) -> web.Response:
        return json_answer(self._host.state())

    async def _set_faults(self, request: web.Request) -> web.Response:
        """Replace all faults by a fault, a list of faults, or {"faults": [...]}. [] clears them."""
        try:
            body = await request.json()
            items = body.get("faults", [body]) if isinstance(body, dict) else body
            faults = [fault_of(item) for item in items]
        except (KeyError, TypeError, ValueError) as error:
            return json_answer(APIError(400, f"no fault: {error!r}").as_json(), 400)
        self._host.faults.clear()
        for fault in faults:
            self._host.faults.put(fault)
        return json_answer({"faults": len(faults)})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        tokens = chat_tokens(body["messages"]) if "messages" in body else tokenize(str(body.get("prompt", "")))
        return json_answer({"count": len(tokens), "max_model_len": self._settings.max_model_len, "tokens": tokens})

    async def _detokenize(self, request: web.Request) -> web.Response:
        return json_answer({"prompt": detokenize((await self._body(request)).get("tokens", []))})

    async def _embeddings(self, request: web.Request) -> web.Response:
        self._counts.requests[request.path] += 1
        texts = (await self._body(request)).get("input", "")
        items = texts if isinstance(texts, list) and texts and not isinstance(texts[0], int) else [texts]
        data = [{"object": "embedding", "index": index, "embedding": [0.0, 1.0]} for index in range(len(items))]
        usage = {"prompt_tokens": len(items), "total_tokens": len(items), "completion_tokens": 0}
        return json_answer({"object": "list", "model": self._settings.model, "data": data, "usage": usage})

    async def _count_tokens(self, request: web.Request) -> web.Response:
        self._counts.requests[request.path] += 1
        return json_answer(count_tokens(await self._body(request), self._settings))

    async def _body(self, request: web.Request) -> dict[str, Any]:
        return decode_body(await request.read(), request.headers.get("Content-Type", ""))

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self._counts.requests[path] += 1
        raw = await request.read()
        body = decode_body(raw, request.headers.get("Content-Type", ""))
        leg = self._leg(body, path)
        headers = {name.lower(): value for name, value in request.headers.items()}
        self._host.seen.append(Seen(path, headers, body, leg, raw))
        if self._host.dead:
            raise self._dead()
        fault = self._strike(leg)
        try:
            if fault is not None:
                await self._fail_early(request, fault, body)
            check_server_errors(body, path)
            call = self._read(body, path, request.headers.get("X-Request-Id"), leg)
            refusal = self._pauses.refusal(path)
            if refusal is not None:
                self._refuse(body)
                return await deliver_refusal(request, call.stream, writer_of(call, self._settings), refusal)
            with self._closed_is_refused(body):
                return await self._answer(request, call, fault)
        except ConnectionCutError:
            return web.Response()  # the connection is closed

    def _leg(self, body: dict[str, Any], path: str) -> Leg:
        """The leg that a request is. With shared storage a request does not show it: the role and what D finds do."""
        storage = self._host.storage
        if storage is None:
            return leg_of(body)
        try:
            call = read_call(body, path, None, self._settings)
        except APIError:
            return Leg.PLAIN
        if self._settings.role is Role.PREFILL:
            return Leg.PREFILL if call.max_tokens == 1 and not call.stream else Leg.PLAIN
        return Leg.DECODE if any(map(storage.found, call.prompts)) else Leg.PLAIN

    def _strike(self, leg: Leg) -> Fault | None:
        fault = self._host.faults.take(leg)
        if fault is not None:
            self._counts.faults[fault.kind.value] += 1
        return fault

    async def _fail_early(self, request: web.Request, fault: Fault, body: dict[str, Any]) -> None:
        """Simulate the faults that need no work."""
        match fault.kind:
            case FaultKind.STATUS:
                if fault.status in _REASONS:
                    self._refuse(body)
                kind = _REASONS.get(fault.status, "InternalServerError")
                error = APIError(fault.status, "simulated fault", kind)
                error.retry_after = fault.retry_after
                raise error
            case FaultKind.HANG_BEFORE_HEAD:
                with self._closed_is_refused(body):
                    await asyncio.sleep(fault.seconds)
            case FaultKind.DIE_BEFORE_HEAD:
                await cut(request)
            case FaultKind.GARBAGE_BYTES:
                await cut(request, _GARBAGE)

    def _read(self, body: dict[str, Any], path: str, header_id: str | None, leg: Leg) -> Call:
        """Validate, count violations, and die of one that kills the engine."""
        try:
            call = read_call(body, path, header_id, self._settings)
        except APIError:
            self._refuse(body)
            raise
        found = list(violations(call, body, has_id(path, body, header_id), self._settings))
        for violation in found:
            self._counts.violate(violation)
        if Violation.ENGINE_KILLED in found:
            self._host.die()
            raise self._dead()
        if Violation.DECODE_LEG_AT_PREFILL in found:
            raise APIError(500, "Internal server error", "InternalServerError")
        if self._host.storage is not None:
            call = replace(call, leg=leg)
        self._counts.legs[call.leg.value] += 1
        return call if accepts(call.leg, self._settings) else replace(call, leg=Leg.PLAIN)

    def _refuse(self, body: dict[str, Any]) -> None:
        """Count a refused request. The connector may notify P that D does not need its blocks."""
        self._counts.refused += 1
        self._notify(body)

    def _notify(self, body: dict[str, Any]) -> None:
        if leg_of(body) is Leg.DECODE and self._settings.connected:
            self._host.connector.refused(body["kv_transfer_params"])

    @contextmanager
    def _closed_is_refused(self, body: dict[str, Any]) -> Iterator[None]:
        """vLLM 0.32 takes a closed leg without a stream for one that it has refused, whatever D has received."""
        try:
            yield
        except asyncio.CancelledError:
            if not body.get("stream"):
                self._notify(body)
            raise

    async def _answer(self, request: web.Request, call: Call, fault: Fault | None) -> web.StreamResponse:
        choices = self._choices(call, fault)
        refuses = fault is not None and bool(fault.error) and call.stream
        aborts = self._host.draining or refuses or (fault is not None and fault.kind is FaultKind.ABORT)
        for choice in choices:
            if aborts:
                choice.seq.end(Finish.ABORT)
            else:
                self._host.core.start(choice.seq)
        try:
            writer = writer_of(call, self._settings)
            if call.stream:
                keep_alive = self._settings.sse_keep_alive_interval
                return await deliver_stream(request, choices, writer, fault, keep_alive)
            return await deliver_whole(request, choices, writer, fault)
        except ConnectionResetError as error:
            raise ConnectionCutError from error
        finally:
            for choice in choices:
                self._host.core.disconnect(choice.seq)

    def _choices(self, call: Call, fault: Fault | None) -> list[Choice]:
        changed = asyncio.Event()
        prefill_seconds = fault.seconds if fault is not None and fault.kind is FaultKind.LONG_PREFILL else 0.0
        slowness = fault.factor if fault is not None and fault.kind is FaultKind.SLOW else 1.0
        stops_at = 0 if call.ignore_eos else max(self._settings.answer_tokens, call.min_tokens)
        choices: list[Choice] = []
        for index, prompt in enumerate(call.prompts):
            digest = digest_of(prompt)
            for _ in range(call.n):
                seq = Sequence(
                    internal_id=call.internal_id(index, secrets.token_hex(4)),
                    prompt=prompt,
                    digest=digest,
                    max_tokens=call.max_tokens,
                    leg=call.leg,
                    params=call.params,
                    stops_at=stops_at if self._settings.answer_tokens else 0,
                    slowness=slowness,
                    prefill_seconds=prefill_seconds,
                    changed=changed,
                )
                choices.append(Choice(len(choices), seq, self._settings.reasoning_tokens if call.hides else 0))
        return choices


@web.middleware
async def _shape_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Answer errors as vLLM does."""
    try:
        response: web.StreamResponse = await handler(request)
    except APIError as error:
        shaped = anthropic_error(error) if request.path.startswith(MESSAGES) else error.as_json()
        answer = json_answer(shaped, error.status)
        if error.retry_after:
            answer.headers["Retry-After"] = str(error.retry_after)
        if error.closes and request.transport is not None:
            asyncio.get_running_loop().call_later(_CLOSES_AFTER, request.transport.close)
        return answer
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        return json_answer({"detail": error.reason}, error.status)
    return response
