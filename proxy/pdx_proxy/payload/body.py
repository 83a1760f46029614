"""The body of a client's request: read once, cleaned of every field of the KV protocol, and written for each leg.

Only the members of the outer object are separated. Their values stay the bytes that the client sent. (Decoding a chat
of 100 kB and encoding it for two legs takes 260 µs; this takes 85 µs.)
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import orjson

from pdx_proxy.http.errors import not_an_object, not_json, not_json_type, too_deep
from pdx_proxy.payload.prompt import PromptFeatures, PromptReader

COMPLETIONS: Final = "/v1/completions"
_ENGINE_FIELDS: Final = ("kv_transfer_params", "ec_transfer_params", "request_id")
_SUSPICIOUS: Final = frozenset({*_ENGINE_FIELDS, "vllm_xargs"})
_NO_FEATURES: Final = PromptFeatures()
_NO_FIELDS: Final[Mapping[str, Any]] = {}
_MAX_DEPTH: Final = 250
"""The deepest nesting that is always accepted. An engine that reads much deeper bodies may fail at them."""
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
"""Members that P's leg leaves out or sets itself. With one token and no stream, vLLM refuses or ignores them.

Members that change some models' prompts (`response_format`, `tool_choice`) are not among them. docs/api.md has a row
for each member.
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
"""Frequent names as JSON keys, encoded once."""
_CONSTANTS: Final[dict[bytes, Any]] = {b"true": True, b"false": False, b"null": None}
_LONGEST_CONSTANT: Final = 5
_TOKENS: Final = re.compile(rb"\[\s*-?\d+\s*,")
"""The beginning of a list whose first element is an integer and which has more elements."""


class Body:
    """The JSON object of a request's body. Each member is stored as JSON with a comma behind it.

    Immutable by convention, as is Request: a frozen dataclass would cost 0.1 µs for each field.
    """

    __slots__ = ("answer", "features", "fields", "limits_completion", "shared")

    def __init__(
        self,
        shared: bytes = b"",
        answer: bytes = b"",
        limits_completion: bool = False,
        fields: Mapping[str, Any] = _NO_FIELDS,
        features: PromptFeatures = _NO_FEATURES,
    ) -> None:
        self.shared = shared
        """Members that go to both legs."""
        self.answer = answer
        """Members that shape the answer only."""
        self.limits_completion = limits_completion
        """Whether the body has `max_completion_tokens`."""
        self.fields = fields
        """The decoded members that decide how the request is served. A long prompt is replaced by a short value."""
        self.features = features
        """The features of the prompt that the policies in force use."""


def read_body(raw: bytes, content_type: str, reader: PromptReader | None = None) -> Body:
    """Return a body's JSON object without the fields that control the engine; raises RefusedError.

    `reader` computes the features of the prompt.

    A body that is not valid UTF-8 JSON never reaches an engine: vLLM's reader accepts more (UTF-16, NaN) and would find
    fields that were not removed here.
    """
    if content_type.split(";", 1)[0].strip().lower() != "application/json":
        raise not_json_type()
    try:
        body = _separate(_MEMBERS.decode(raw), reader)
        if not raw.isascii():
            raw.decode()  # msgspec did not check the bytes inside the values
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise not_an_object(raw) from None
    except RecursionError:
        raise too_deep(_MAX_DEPTH) from None
    if _may_be_deep(raw):
        _refuse_depth(raw)
    return body


def body_of(members: Mapping[str, Any]) -> Body:
    """The body of a request that the gateway itself sends."""
    return read_body(orjson.dumps(members), "application/json")


def _separate(members: dict[str, Any], reader: PromptReader | None) -> Body:
    """Remove the fields of the KV protocol and the request's ID inside the engine, and sort the other members."""
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
    features = reader.features_of(members) if reader is not None else _NO_FEATURES
    return Body(b"".join(shared), b"".join(answer), "max_completion_tokens" in members, fields, features)


def _clean_extra(raw: Any) -> bytes:
    """The object without the fields that control the engine. The other values are unchanged, at any depth and size."""
    given = bytes(raw)
    if not given.startswith(b"{"):
        return given
    members = _MEMBERS.decode(given)
    for name in _ENGINE_FIELDS:
        members.pop(name, None)
    return b"{" + b",".join([b"%b:%b" % (orjson.dumps(key), value) for key, value in members.items()]) + b"}"


def _decode(raw: Any) -> Any:
    """The decoded value. A long value is replaced by a short one of the same kind."""
    size = len(raw)
    if size <= _LONGEST_CONSTANT and (constant := _CONSTANTS.get(bytes(raw), raw)) is not raw:
        return constant
    if size > 64:
        start = bytes(memoryview(raw)[:64])
        if start.startswith(b'"'):
            return "a long text"
        if _TOKENS.match(start):
            return [0, 0]
    return msgspec.json.decode(raw)


def _may_be_deep(raw: bytes) -> bool:
    """Whether there are enough brackets for that depth. (`find` is ten times as fast as `count`: 3 µs for 100 kB.)"""
    remaining = _MAX_DEPTH
    for bracket in (b"[", b"{"):
        at = raw.find(bracket)
        while at >= 0 and remaining:
            remaining -= 1
            at = raw.find(bracket, at + 1)
    return not remaining


def _refuse_depth(raw: bytes) -> None:
    """Raise RefusedError if the body is too deep: orjson reads deeper nesting than it writes."""
    try:
        orjson.dumps(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        raise not_json(raw, error) from None
    except orjson.JSONEncodeError:
        raise too_deep(_MAX_DEPTH) from None


def prefill_body(body: Body, params: Mapping[str, Any] | None) -> bytes:
    """The body of P's leg: one token, no stream, and all members that shape the prompt as the client wrote them.

    `ignore_eos` makes the leg end by its length: some connectors hand over nothing for a leg that ends by a stop token.
    """
    own = b'"stream":false,"max_tokens":1,"ignore_eos":true,'
    if body.limits_completion:
        own += b'"max_completion_tokens":1,'
    if params is None:
        return b"{" + (body.shared + own)[:-1] + b"}"
    return b"".join((b"{", body.shared, own, b'"kv_transfer_params":', msgspec.json.encode(params), b"}"))


def decode_body(body: Body, params: Mapping[str, Any] | None) -> bytes:
    """The body of D's leg: the client's body, with the parameters of the hand-off if there are any."""
    if params is None:
        return b"{" + (body.shared + body.answer)[:-1] + b"}"
    return b"".join((b"{", body.shared, body.answer, b'"kv_transfer_params":', msgspec.json.encode(params), b"}"))


def settling_body(path: str, params: Mapping[str, Any], max_tokens: int, salt: str) -> bytes:
    """The body of a leg that only settles a hand-off: a prompt of a few tokens with the hand-off's parameters.

    The KV that D receives belongs to another prompt. `salt` is unique to this request and keeps that KV out of D's
    prefix cache.
    """
    prompt = {"prompt": "."} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "."}]}
    shape = {"max_tokens": max_tokens, "ignore_eos": True, "cache_salt": salt}
    return msgspec.json.encode({**prompt, **shape, "kv_transfer_params": params})
