"""The body of a client's request: read once, cleaned of every field of the KV protocol, and written for each leg.

Only the members of the outer object are separated. Their values stay the bytes that the client sent. (Decoding a chat
of 100 kB and encoding it for two legs takes 260 µs; this takes 85 µs.)
"""

import re
from collections.abc import Generator, Mapping
from typing import Any, Final, TypeAlias

import msgspec
import orjson

from pdx_proxy.http.errors import (
    not_an_object,
    not_json_type,
    tokens_for_engines,
    too_deep,
    too_many_brackets,
    too_many_members,
)
from pdx_proxy.http.messages import BodyParts
from pdx_proxy.payload.answer_members import are_usual
from pdx_proxy.payload.apis import API, COMPLETIONS_API, ENGINE_FIELDS, api_of, named, own_members
from pdx_proxy.payload.decisions import COMPLETIONS, Decisions, decide, is_text, is_token
from pdx_proxy.payload.features import PromptFeatures, PromptReader
from pdx_proxy.payload.json_scanner import JSONScanner, Span
from pdx_proxy.payload.structure import MAX_BRACKETS, MAX_DEPTH, MAX_MEMBERS, may_be_deep, measure

LARGE_BYTES: Final = 256 * 1024
"""A larger body is read in slices: reading the worst body of this size at once takes about 10 ms."""
_COPIED_BYTES: Final = 16 * 1024
"""The members of a larger body are not copied: its legs are sent in parts."""
LegBody: TypeAlias = bytes | BodyParts
_JSON: Final = "application/json"
_XARGS: Final = "vllm_xargs"
_NO_FEATURES: Final = PromptFeatures()
_NO_DECISIONS: Final = Decisions()
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EMPTY: Final = b"{}"
_PARAMS: Final = b',"kv_transfer_params":'
_ANSWERS_TOKENS: Final = b',"return_token_ids":true'
_TOKENS_FOR_D: Final = b',"prompt_token_ids":'
_MOST_TOKENS: Final = 1024 * 1024
"""Bytes of the longest chat whose tokens D gets: it has at most one token for each byte, of up to 8 bytes as JSON."""
_SHOWS_PROMPT: Final = b'"return_prompt_text":'
_ONE_PROMPT: Final = b'"."'
_NOT_ONE_PROMPT: Final = b"null"
"""What `decide` reads instead of a long prompt."""
_TOKENS: Final = re.compile(rb'"prompt_token_ids"\s*+:(?!\s*+null\b)')
"""In parameters for an engine: the tokens that vLLM would take instead of a chat's messages. D would then keep the KV
of those messages as that of the tokens, and serve it to others."""
_TEXT: Final = msgspec.json.Decoder(str)
_ENCODE: Final = msgspec.json.encode


class Body:
    """The JSON object of a request's body. Each member is stored as JSON with a comma behind it.

    Immutable by convention once its reader has returned it: a frozen dataclass would cost 0.1 µs for each field.
    """

    __slots__ = ("answer", "api", "decisions", "features", "prefill", "session", "shared")

    def __init__(
        self,
        shared: LegBody = b"",
        answer: LegBody = b"",
        prefill: bytes = b"",
        decisions: Decisions = _NO_DECISIONS,
        features: PromptFeatures = _NO_FEATURES,
        api: API = COMPLETIONS_API,
    ) -> None:
        self.shared = shared
        """Members that go to both legs. Large ones are not copied."""
        self.answer = answer
        """Members that shape the answer only."""
        self.prefill = prefill
        """What P's leg has instead of them, without a comma behind it."""
        self.decisions = decisions
        """How the request is served."""
        self.features = features
        """The features of the prompt that the policies in force use."""
        self.api = api
        """The API of its path."""
        self.session = ""
        """The client's name for the conversation; empty without one."""

    def join(self, session: str) -> None:
        """The request belongs to the client's conversation of this name."""
        self.session = session


def read_body(raw: bytes | bytearray, content_type: str, path: str, reader: PromptReader | None = None) -> Body:
    """Return a body's JSON object without the fields that control the engine; raises RefusedError.

    `reader` computes the features of the prompt. A body of more than `LARGE_BYTES` goes to `read_large_body`.

    A body that is not valid UTF-8 JSON never reaches an engine: vLLM's reader accepts more (UTF-16, NaN) and would find
    fields that were not removed here.
    """
    _check_type(content_type)
    try:
        members = _MEMBERS.decode(raw)
        if len(members) > MAX_MEMBERS:
            raise too_many_members(MAX_MEMBERS)
        text = _text_size(members)
        body = _separate(members, path, reader, text, len(raw) <= _COPIED_BYTES)
        if not raw.isascii():
            raw.decode()  # msgspec did not check the bytes inside the values
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise not_an_object(bytes(raw)) from None
    except RecursionError:
        raise too_deep(MAX_DEPTH) from None
    if len(raw) - text > 2 * MAX_DEPTH and may_be_deep(raw):  # nothing in a text is nested
        depth, brackets = measure(raw)
        if brackets > MAX_BRACKETS:
            raise too_many_brackets(MAX_BRACKETS)
        if depth > MAX_DEPTH:
            raise too_deep(MAX_DEPTH)
    return body


def read_large_body(
    raw: bytes | bytearray,
    content_type: str,
    path: str,
    reader: PromptReader | None = None,
    scanner: JSONScanner | None = None,
) -> Generator[int, None, Body]:
    """The same as `read_body`, in slices. It yields the number of bytes that it has read since it yielded last.

    The members of the body are views of `raw`, which must not change any more.
    """
    _check_type(content_type)
    scanner = scanner or JSONScanner(raw)
    spans = yield from scanner.document()
    view = memoryview(raw)
    members: dict[str, Any] = {name: view[begin:end] for name, (begin, end) in spans.items()}
    if _XARGS in members:
        members[_XARGS] = yield from _clean_large_extra(raw, spans[_XARGS])
    api = api_of(path)
    shared, answer, deciding = _sort(members, api)
    if len(members.get("prompt", b"")) > LARGE_BYTES and path == COMPLETIONS:
        one = yield from _is_one_long_prompt(raw, spans["prompt"])
        deciding["prompt"] = _ONE_PROMPT if one else _NOT_ONE_PROMPT
    features = (yield from reader.features_of_large(members)) if reader is not None else _NO_FEATURES
    decisions = _decide(path, deciding)
    own = own_members(api, members)
    return Body(BodyParts(_flat(shared)), BodyParts(answer), own, decisions, features, api)


def _decide(path: str, members: dict[str, Any]) -> Decisions:
    """How the request is served: whole if D might refuse a member that P does not get."""
    found = decide(path, members)
    if found.splits and not are_usual(path, members, found.stream):
        return Decisions(found.stream, False, found.most_tokens, found.may_be_silent)
    return found


def _flat(parts: list[Any]) -> list[Any]:
    return [each for part in parts for each in (part.parts if isinstance(part, BodyParts) else (part,))]


def body_of(members: Mapping[str, Any]) -> Body:
    """The body of a request that the gateway itself sends."""
    return read_body(orjson.dumps(members), _JSON, "")


def _check_type(content_type: str) -> None:
    if content_type != _JSON and content_type.split(";", 1)[0].strip().lower() != _JSON:
        raise not_json_type()


def _text_size(members: dict[str, Any]) -> int:
    """Bytes of a prompt that is one text; 0 for any other prompt."""
    prompt = members.get("prompt")
    return len(prompt) if prompt is not None and is_text(prompt) else 0


def _separate(members: dict[str, Any], path: str, reader: PromptReader | None, text: int, copied: bool) -> Body:
    """Remove the fields that control the engine, and sort the other members. `text`: see `_text_size`."""
    if _XARGS in members:
        members[_XARGS] = _clean_extra(members[_XARGS])
    api = api_of(path)
    shared, answer, deciding = _sort(members, api)
    if text > len(_ONE_PROMPT):
        deciding["prompt"] = _ONE_PROMPT
    features = reader.features_of(members, text) if reader is not None else _NO_FEATURES
    decisions = _decide(path, deciding)
    own = own_members(api, members)
    if copied:
        return Body(b"".join(shared), b"".join(answer), own, decisions, features, api)
    return Body(_views(shared), _views(answer), own, decisions, features, api)


def _views(parts: list[Any]) -> BodyParts:
    return BodyParts([part if isinstance(part, bytes) else memoryview(part) for part in parts])


def _sort(members: dict[str, Any], api: API) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """The parts of the members that go to both legs, those that shape the answer, and the members that decide.

    The fields of the KV protocol and the request's ID inside the engine are in none of them.
    """
    shared: list[Any] = []
    answer: list[Any] = []
    deciding: dict[str, Any] = {}
    rules = api.members
    for key, value in members.items():
        listed = rules.get(key)
        into = shared
        if listed is None:
            into.append(b"%b:" % orjson.dumps(key))
        elif listed.removed:
            if _TOKENS.search(value):
                raise tokens_for_engines()
            continue
        else:
            if listed.deciding:
                deciding[key] = value
            if listed.answer:
                into = answer
            into.append(listed.key)
        into.append(value)
        into.append(b",")
    return shared, answer, deciding


def _clean_extra(raw: Any) -> bytes:
    """The object without the fields that control the engine. The other values are unchanged, at any depth and size."""
    given = bytes(raw)
    if not given.startswith(b"{"):
        return given
    members = _MEMBERS.decode(given)
    if len(members) > MAX_MEMBERS:
        raise too_many_members(MAX_MEMBERS)
    return b"".join(_without_engine_fields(members)) if _has_engine_fields(members) else given


def _clean_large_extra(raw: bytes | bytearray, span: Span) -> Generator[int, None, Any]:
    """The same for a large body."""
    view = memoryview(raw)
    given = view[span[0] : span[1]]
    if raw[span[0]] != ord("{"):
        return given
    spans, _ = yield from JSONScanner(raw).members(span[0])
    if not _has_engine_fields(spans):
        return given
    return BodyParts(_without_engine_fields({name: view[begin:end] for name, (begin, end) in spans.items()}))


def _has_engine_fields(members: Mapping[str, Any]) -> bool:
    return any(name in members for name in ENGINE_FIELDS)


def _without_engine_fields(members: dict[str, Any]) -> list[Any]:
    parts: list[Any] = []
    for key, value in members.items():
        if key not in ENGINE_FIELDS:
            parts += (b",", orjson.dumps(key), b":", value)
    return [b"{", *parts[1:], b"}"]


def _is_one_long_prompt(raw: bytes | bytearray, span: Span) -> Generator[int, None, bool]:
    """Whether a prompt that is not empty is one prompt."""
    if raw[span[0]] == ord('"'):
        return True
    if raw[span[0]] != ord("["):
        return False
    (begin, end), only = yield from JSONScanner(raw).first_element(span[0])
    return only or is_token(memoryview(raw)[begin:end])


def model_of(body: Body) -> str:
    """The member `model`; empty without one, or if it is no text. Short members are read again: for traces only."""
    shared = body.shared
    parts = shared.parts if isinstance(shared, BodyParts) else [shared]
    for part in parts:
        if isinstance(part, bytes):  # a long value is a view
            found = _model_in(part)
            if found:
                return found
    return ""


def _model_in(members: bytes) -> str:
    """The model in members with a comma behind each. Around long values, a comma comes first and a name last."""
    begin = 1 if members.startswith(b",") else 0
    end = b"null}" if members.endswith(b":") else b"}"
    try:
        model = _MEMBERS.decode(b"{" + members[begin:].removesuffix(b",") + end).get("model")
        return "" if model is None else _TEXT.decode(model)
    except msgspec.DecodeError:
        return ""


def may_reuse_tokens(body: Body) -> bool:
    """Whether D's leg may have the tokens that P has made of the messages: a long chat, of which D shows no prompt.

    Of a short one, the longer bodies cost as much as D saves. (D ignores tokens of a chat with media.)
    """
    answer = body.answer
    if not body.api.reuses_tokens or not isinstance(answer, BodyParts) or len(body.shared) > _MOST_TOKENS:
        return False
    # A long value is a view.
    return not any(_SHOWS_PROMPT in part for part in answer.parts if isinstance(part, bytes))


def prefill_body(
    body: Body, params: Mapping[str, Any] | msgspec.Raw | None, *, answers_tokens: bool = False
) -> LegBody:
    """The body of P's leg: one token, no stream, and all members that shape the prompt as the client wrote them.

    `answers_tokens`: P's answer has the tokens of the prompt.
    """
    own = body.prefill + _ANSWERS_TOKENS if answers_tokens else body.prefill
    given = b"" if params is None else _ENCODE(params)
    name = _PARAMS if given else b""
    shared = body.shared
    if isinstance(shared, BodyParts):
        return BodyParts((b"{", *shared.parts, own, name, given, b"}"))
    return b"".join((b"{", shared, own, name, given, b"}"))


def decode_body(body: Body, params: Mapping[str, Any] | msgspec.Raw | None, tokens: bytes = b"") -> LegBody:
    """The body of D's leg: the client's body, with the parameters of the hand-off if there are any.

    `tokens`: what P has made of the messages, which D then does not render again.
    """
    own = b"" if params is None else b'"kv_transfer_params":' + _ENCODE(params)
    if tokens and own.endswith(b"}"):
        own = b"".join((own[:-1], _TOKENS_FOR_D, tokens, b"}"))
    shared, answer = body.shared, body.answer
    if isinstance(shared, BodyParts):
        assert isinstance(answer, BodyParts), "all members of a large body are parts"
        members = [*shared.parts, *answer.parts]
        if members and not own:
            members[-1] = members[-1][:-1]
        return BodyParts((b"{", *members, own, b"}"))
    assert isinstance(answer, bytes), "all members of a small body are joined"
    if not own:
        return b"{" + (shared + answer)[:-1] + b"}"
    return b"".join((b"{", shared, answer, own, b"}"))


def settling_body(api: API, params: Mapping[str, Any] | msgspec.Raw, max_tokens: int, salt: str) -> bytes:
    """The body of a leg that only settles a hand-off: a prompt of a few tokens with the hand-off's parameters.

    The KV that D receives belongs to another prompt. `salt` is unique to this request and keeps that KV out of D's
    prefix cache. The leg goes to the API's `settles_at`.
    """
    shape = {api.limit: max_tokens, "ignore_eos": True, "cache_salt": salt}
    return _ENCODE({**api.prompt, **shape, "kv_transfer_params": params})


def identified(body: LegBody, request_id: str) -> LegBody:
    """The body of a leg with its ID inside, for an API that reads it there."""
    if isinstance(body, BodyParts):
        first = memoryview(body.parts[0])[1:]
        return BodyParts((b"{", named(request_id), b",", first, *body.parts[1:]))
    return b"".join((b"{", named(request_id), b"," if body != _EMPTY else b"", body[1:]))
