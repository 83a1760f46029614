"""A client's request, read once: refused, cleaned of everything that speaks to the KV protocol, and classified.

Only the members of a body's object are told apart; their values stay the bytes that the client sent. (Decoding a chat
of 100 kB and encoding it for two legs takes 260 µs, this takes 85 µs.)
"""

import json
import re
from collections.abc import Mapping
from math import inf
from typing import Any, Final

import msgspec
import orjson

from pdx_proxy.payload.prompt import Look, PromptFeatures
from pdx_proxy.telemetry.timeline import Timeline

_ENGINE_FIELDS: Final = ("kv_transfer_params", "ec_transfer_params", "request_id")
_SUSPICIOUS: Final = frozenset({*_ENGINE_FIELDS, "vllm_xargs"})
_COMPLETIONS: Final = "/v1/completions"
_NO_TRAITS: Final = PromptFeatures()
_NO_FIELDS: Final[Mapping[str, Any]] = {}
_MAX_DEPTH: Final = 250
"""Deepest nesting of a body that is sure to be accepted. An engine that reads much deeper ones may fail at them."""
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANSWER_ONLY: Final = frozenset(
    {
        *("stream", "stream_options"),
        *("max_tokens", "min_tokens", "max_completion_tokens", "min_completion_tokens", "ignore_eos"),
        *("logprobs", "top_logprobs", "logprob_token_ids"),
        *("return_token_ids", "return_tokens_as_token_ids", "return_prompt_text"),
        *("stop", "stop_token_ids", "repetition_detection", "structured_outputs"),
    }
)
"""Members that P's leg has none of, or its own: one token and no stream make vLLM refuse them, or nothing of them.

Not among them is what some models' prompts are made of (`response_format`, `tool_choice`). Each has its row in
docs/api.md.
"""
_DECIDING: Final = frozenset(
    {
        *("stream", "n", "best_of", "use_beam_search", "echo"),
        *("prompt_logprobs", "prompt_embeds", "prompt", "truncate_prompt_tokens"),
    }
)
"""Members that decide how a request is served."""
_NAMES: Final = {
    name: f'"{name}":'.encode() for name in (*_ANSWER_ONLY, *_DECIDING, "model", "messages", "temperature")
}
"""Names that most bodies have, as they are written."""
_WORDS: Final[dict[bytes, Any]] = {b"true": True, b"false": False, b"null": None}
_LONGEST_WORD: Final = 5
_TOKENS: Final = re.compile(rb"\[\s*-?\d+\s*,")
"""How a list begins whose first element is an integer, with more behind it."""


class RefusedError(Exception):
    """The gateway refuses the request by itself, in vLLM's words."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.headers: Mapping[str, str] = {}
        """Further headers of the answer."""
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """vLLM's error object."""
        return error_body(self.status, self.message, self.kind, self.param)


class Body:
    """The object of a request's body, its members as JSON with a comma behind each.

    Not changed once it is made, nor is a Request: a frozen dataclass says so at 0.1 µs for each field.
    """

    __slots__ = ("answer", "features", "fields", "limits_completion", "shared")

    def __init__(
        self,
        shared: bytes = b"",
        answer: bytes = b"",
        limits_completion: bool = False,
        fields: Mapping[str, Any] = _NO_FIELDS,
        features: PromptFeatures = _NO_TRAITS,
    ) -> None:
        self.shared = shared
        """Members that both legs get."""
        self.answer = answer
        """Members that shape the answer alone."""
        self.limits_completion = limits_completion
        """Whether `max_completion_tokens` is among them."""
        self.fields = fields
        """The members that decide how the request is served, decoded. Of a long prompt only its kind is kept."""
        self.features = features
        """What the policies in force asked of the prompt."""


class Request:
    """A request that may go to an engine."""

    __slots__ = ("body", "headers", "path", "session", "split", "timeline", "until")

    def __init__(
        self,
        path: str,
        body: Body,
        headers: tuple[tuple[str, str], ...],
        split: bool,
        session: str = "",
        until: float = inf,
        timeline: Timeline | None = None,
    ) -> None:
        self.path = path
        self.body = body
        self.headers = headers
        """What of the client's head engines get."""
        self.split = split
        """Whether prefill and decode may run on different engines."""
        self.session = session
        """The client's name for the conversation that it belongs to."""
        self.until = until
        """When its whole time is over, in the loop's time."""
        self.timeline = timeline if timeline is not None else Timeline()
        """What it goes through."""

    def whole(self) -> "Request":
        """The same for one engine alone."""
        return Request(self.path, self.body, self.headers, False, self.session, self.until, self.timeline)

    @property
    def stream(self) -> bool:
        """Whether the client asked for a stream, as far as deadlines need to know."""
        return bool(self.body.fields.get("stream"))


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    """An error in the shape vLLM gives it (vllm/entrypoints/serve/engine/protocol.py, ErrorResponse)."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


def read_body(raw: bytes, content_type: str, look: Look | None = None) -> Body:
    """The JSON object of a body, without the fields that reach into the engine; raises RefusedError.

    `look` is what to ask of its prompt.

    What is not valid UTF-8 JSON never goes on: vLLM's reader accepts more (UTF-16, NaN) and would see fields that were
    not seen here.
    """
    if content_type.split(";", 1)[0].strip().lower() != "application/json":
        raise RefusedError(
            400, "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", "Bad Request"
        )
    try:
        body = _body_of(_MEMBERS.decode(raw), look)
        if not raw.isascii():
            raw.decode()  # most values are bytes that nobody has looked at
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _refusal(raw) from None
    except RecursionError:
        raise _too_deep() from None
    if _may_be_deep(raw):
        _refuse_depth(raw)
    return body


def body_of(members: Mapping[str, Any]) -> Body:
    """A body of the gateway's own."""
    return read_body(orjson.dumps(members), "application/json")


def _body_of(members: dict[str, Any], look: Look | None) -> Body:
    """Take out what would reach the KV protocol or name a request inside the engine, and sort the rest."""
    if not _SUSPICIOUS.isdisjoint(members):
        for name in _ENGINE_FIELDS:
            members.pop(name, None)
        if "vllm_xargs" in members:
            members["vllm_xargs"] = _clean_extra(members["vllm_xargs"])
    shared: list[Any] = []
    answer: list[Any] = []
    fields: dict[str, Any] = {}
    for key, value in members.items():
        if key in _DECIDING:
            fields[key] = _decode(value)
        into = answer if key in _ANSWER_ONLY else shared
        into.append(_NAMES.get(key) or b"%b:" % orjson.dumps(key))
        into.append(value)
        into.append(b",")
    features = look.at(members) if look is not None else _NO_TRAITS
    return Body(b"".join(shared), b"".join(answer), "max_completion_tokens" in members, fields, features)


def _clean_extra(raw: Any) -> bytes:
    """The object without what reaches into the engine; its values stay as they came, however deep or large."""
    given = bytes(raw)
    if not given.startswith(b"{"):
        return given
    members = _MEMBERS.decode(given)
    for name in _ENGINE_FIELDS:
        members.pop(name, None)
    return b"{" + b",".join([b"%b:%b" % (orjson.dumps(key), value) for key, value in members.items()]) + b"}"


def _decode(raw: Any) -> Any:
    """A value, or in place of a long one a short one of its kind."""
    size = len(raw)
    if size <= _LONGEST_WORD and (word := _WORDS.get(bytes(raw), raw)) is not raw:
        return word
    if size > 64:
        start = bytes(memoryview(raw)[:64])
        if start.startswith(b'"'):
            return "a long text"
        if _TOKENS.match(start):
            return [0, 0]
    return msgspec.json.decode(raw)


def _may_be_deep(raw: bytes) -> bool:
    """Whether there are enough brackets. (`find` is ten times as fast as `count`: 3 µs of 100 kB.)"""
    left = _MAX_DEPTH
    for bracket in (b"[", b"{"):
        at = raw.find(bracket)
        while at >= 0 and left:
            left -= 1
            at = raw.find(bracket, at + 1)
    return not left


def _refuse_depth(raw: bytes) -> None:
    """orjson reads deeper than it writes, and says so."""
    try:
        orjson.dumps(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        raise _not_json(raw, error) from None
    except orjson.JSONEncodeError:
        raise _too_deep() from None


def _too_deep() -> RefusedError:
    return RefusedError(400, f"The body is nested deeper than {_MAX_DEPTH} levels.", "Bad Request", "body")


def _refusal(raw: bytes) -> RefusedError:
    """What vLLM would say to a body that is no JSON object."""
    if not raw:
        return _invalid({"type": "missing", "loc": "body", "msg": "Field required", "input": "None"})
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return _not_json(raw, error)
    shown = f"<list of {len(body)} items>" if isinstance(body, list) else str(body)[:200]
    message = "Input should be a valid dictionary or object to extract fields from"
    return _invalid({"type": "model_attributes_type", "loc": "body", "msg": message, "input": shown})


def can_split(path: str, body: Mapping[str, Any]) -> bool:
    """Whether one prompt gives one answer, so that its KV can be made elsewhere.

    vLLM skips the connector for echo and prompt_logprobs (v1/core/sched/scheduler.py), and with n > 1 each child would
    fetch the same blocks, which the first one frees. A prompt that is cut to what the answer leaves may be cut
    otherwise for P, whose answer is one token.
    """
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1) or body.get("use_beam_search"):
        return False
    if body.get("echo") or body.get("prompt_logprobs") is not None:
        return False
    kept = body.get("truncate_prompt_tokens")
    if kept is not None and not (isinstance(kept, int) and kept >= 0):
        return False
    if path != _COMPLETIONS:
        return True
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return bool(prompt) and (len(prompt) == 1 or isinstance(prompt[0], int))
    return isinstance(prompt, str) and bool(prompt) and body.get("prompt_embeds") is None


def prefill_body(body: Body, params: Mapping[str, Any] | None) -> bytes:
    """P's leg: one token, no stream, and everything that shapes the prompt as the client wrote it.

    Whatever the token is, the leg ends by its length: some connectors hand nothing over of one that ends by itself.
    """
    own = b'"stream":false,"max_tokens":1,"ignore_eos":true,'
    if body.limits_completion:
        own += b'"max_completion_tokens":1,'
    if params is None:
        return b"{" + (body.shared + own)[:-1] + b"}"
    return b"".join((b"{", body.shared, own, b'"kv_transfer_params":', msgspec.json.encode(params), b"}"))


def decode_body(body: Body, params: Mapping[str, Any] | None) -> bytes:
    """D's leg: the client's body, with parameters for the hand-off if there are any."""
    if params is None:
        return b"{" + (body.shared + body.answer)[:-1] + b"}"
    return b"".join((b"{", body.shared, body.answer, b'"kv_transfer_params":', msgspec.json.encode(params), b"}"))


def settling_body(path: str, params: Mapping[str, Any], max_tokens: int, salt: str) -> bytes:
    """A leg that only settles a hand-off: a prompt of a few tokens under the hand-off's parameters.

    The KV that D gets is another prompt's: `salt`, which no other request has, keeps it out of D's prefix cache.
    """
    prompt = {"prompt": "."} if path == _COMPLETIONS else {"messages": [{"role": "user", "content": "."}]}
    shape = {"max_tokens": max_tokens, "ignore_eos": True, "cache_salt": salt}
    return msgspec.json.encode({**prompt, **shape, "kv_transfer_params": params})


def _invalid(detail: dict[str, Any], param: str = "body") -> RefusedError:
    return RefusedError(400, f"1 validation error:\n  {detail}", "Bad Request", param)


def _not_json(raw: bytes, error: orjson.JSONDecodeError) -> RefusedError:
    position, message = error.pos, error.msg
    try:
        json.loads(raw)
    except json.JSONDecodeError as strict:
        position, message = strict.pos, strict.msg
    except (ValueError, RecursionError):
        pass
    detail = {
        "type": "json_invalid",
        "loc": f"body.{position}",
        "msg": "JSON decode error",
        "input": "<dict of 0 items>",
        "ctx": {"error": message},
    }
    return _invalid(detail, f"body.{position}")
