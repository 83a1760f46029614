"""Reading and cleaning a client's body, and the bodies of the legs."""

import json
from math import inf
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_proxy.http.errors import RefusedError
from pdx_proxy.http.messages import BodyParts
from pdx_proxy.payload.apis import APIS
from pdx_proxy.payload.body import (
    LARGE_BYTES,
    body_of,
    decode_body,
    identified,
    model_of,
    prefill_body,
    read_body,
    settling_body,
)
from tests.unit.proxy.payload.bodies import BODIES, CHAT, FORBIDDEN, JSON, TEXT, read_in_slices

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"


def _read(raw: bytes) -> dict[str, Any]:
    """A body as an engine gets it."""
    return dict(orjson.loads(bytes(decode_body(read_body(raw, JSON, TEXT), None))))


def _clean(body: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in body.items() if key not in FORBIDDEN}
    if isinstance(extra := kept.get("vllm_xargs"), dict):
        kept["vllm_xargs"] = {key: value for key, value in extra.items() if key not in FORBIDDEN}
    return kept


def _escaped(text: str) -> str:
    return "".join(f"\\u{ord(character):04x}" if ord(character) < 0x10000 else character for character in text)


@given(BODIES)
def test_no_forbidden_key_gets_through(body: dict[str, Any]) -> None:
    assert _read(orjson.dumps(body)) == _clean(body)


@given(BODIES)
def test_no_spelling_of_a_key_gets_through(body: dict[str, Any]) -> None:
    pairs = [f'"{_escaped(key)}":{json.dumps(value)}' for key, value in body.items()]
    assert _read(("{" + ",".join([*pairs, *pairs]) + "}").encode()) == _clean(body)


def test_the_last_of_repeated_keys_counts() -> None:
    raw = b' {"stream": true, "prompt":"a", "str\\u0065am" :false,"prompt":"b"}\n'
    body = read_body(raw, JSON, TEXT)
    assert not body.decisions.stream
    for leg in map(bytes, (decode_body(body, None), decode_body(body, {}), prefill_body(body, {}))):
        assert (leg.count(b"prompt"), leg.count(b"stream")) == (1, 1)


VALUES_AS_THEY_CAME = (
    b'{"prompt":"a \\u00e9 \xc3\xa9 \\/","seed":12345678901234567890123,"temperature":1.10,"stop":[ ]}'
)


def test_values_are_not_changed() -> None:
    assert decode_body(read_body(VALUES_AS_THEY_CAME, JSON, TEXT), None) == VALUES_AS_THEY_CAME


NOT_JSON = [
    *(
        b'{"a":"\\q"}',
        b'{"a":"\n"}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xc0\xaf"}',
        b'{"a":{"b":"\xed\xa0\x80"}}',
    ),
    *(b'{"a":01}', b'{"a":NaN}', b'{"a":yes}', b'{"a":[1,]}'),
    *(b'{"\xff":1}', b"{}{}", b'{"a":1}x'),
]


@pytest.mark.parametrize("raw", NOT_JSON)
def test_lenient_json_is_refused(raw: bytes) -> None:
    with pytest.raises(RefusedError, match="json_invalid"):
        read_body(raw, JSON, TEXT)
    with pytest.raises(RefusedError, match="not a valid JSON object"):
        read_in_slices(raw)


@given(BODIES)
def test_legs_carry_the_gateways_parameters_alone(body: dict[str, Any]) -> None:
    read = read_body(orjson.dumps(body), JSON, TEXT)
    prefill = orjson.loads(bytes(prefill_body(read, {"mine": 1})))
    assert prefill["kv_transfer_params"] == {"mine": 1}
    assert (prefill["max_tokens"], prefill["stream"]) == (1, False)
    assert orjson.loads(bytes(decode_body(read, {"mine": 2}))) == {**_clean(body), "kv_transfer_params": {"mine": 2}}
    assert "kv_transfer_params" not in orjson.loads(bytes(decode_body(read, None)))


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_refused(raw: bytes) -> None:
    try:
        body = read_body(raw, JSON, TEXT)
    except RefusedError as refusal:
        document = orjson.loads(refusal.body())["error"]
        found = (document.keys(), document["code"])
    else:
        assert isinstance(orjson.loads(bytes(decode_body(body, None))), dict)
        found = (set(), 200)
    assert found[1] == 200 or found == ({"message", "type", "param", "code"}, 400)


CONTENT_TYPES = {
    "application/json": True,
    "application/json; charset=utf-8": True,
    "APPLICATION/JSON": True,
    " application/json ": True,
    "text/plain": False,
    "": False,
    "application/jsonl": False,
}


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_content_type(content_type: str) -> None:
    if CONTENT_TYPES[content_type]:
        assert decode_body(read_body(b"{}", content_type, TEXT), None) == b"{}"
    else:
        with pytest.raises(RefusedError, match="Unsupported Media Type"):
            read_body(b"{}", content_type, TEXT)


def test_prefill_leg_drops_what_shapes_the_answer_alone() -> None:
    body = {
        "prompt": "a",
        "seed": 1,
        "max_tokens": 50,
        "max_completion_tokens": 9,
        "min_tokens": 10,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": 2,
        "top_logprobs": 3,
    }
    leg = orjson.loads(bytes(prefill_body(body_of(body), {})))
    assert leg == {
        "prompt": "a",
        "seed": 1,
        "stream": False,
        "max_tokens": 1,
        "ignore_eos": True,
        "max_completion_tokens": 1,
        "kv_transfer_params": {},
    }
    assert orjson.loads(bytes(decode_body(body_of(body), None))) == body


def test_settling_leg_is_short() -> None:
    assert orjson.loads(settling_body(APIS[TEXT], {"a": 1}, 7, "fresh")) == {
        "prompt": ".",
        "max_tokens": 7,
        "ignore_eos": True,
        "cache_salt": "fresh",
        "kv_transfer_params": {"a": 1},
    }
    assert orjson.loads(settling_body(APIS[CHAT], {}, 1, "fresh"))["messages"] == [{"role": "user", "content": "."}]


@pytest.mark.parametrize("size", [0, 10, 20_000])
def test_a_response_has_its_legs_id_inside(size: int) -> None:
    members = {"input": "x" * size, "request_id": "mine"} if size else {}
    body = read_body(orjson.dumps(members), JSON, RESPONSES)
    for leg in (decode_body(body, None), decode_body(body, {"a": 1}), prefill_body(body, None)):
        found = orjson.loads(bytes(identified(leg, "5")))
        assert found.pop("request_id") == "resp_5"
        assert found == orjson.loads(bytes(leg))


def test_settling_legs_of_agents() -> None:
    """A message's goes to /v1/chat/completions, where the engine's ID is the same, and which has `ignore_eos`."""
    assert (APIS[MESSAGES].settles_at, APIS[RESPONSES].settles_at) == (CHAT, RESPONSES)
    assert settling_body(APIS[MESSAGES], {}, 1, "fresh") == settling_body(APIS[CHAT], {}, 1, "fresh")
    assert orjson.loads(settling_body(APIS[RESPONSES], {"a": 1}, 7, "fresh")) == {
        "input": ".",
        "max_output_tokens": 7,
        "ignore_eos": True,
        "cache_salt": "fresh",
        "kv_transfer_params": {"a": 1},
    }


PREFILLED: dict[str, Any] = {
    CHAT: {"choices": [{"finish_reason": "length"}], "kv_transfer_params": {"a": 1}},
    MESSAGES: {"type": "message", "stop_reason": "max_tokens", "kv_transfer_params": {"a": 1}},
    RESPONSES: {"object": "response", "usage": {"output_tokens": 1}, "kv_transfer_params": {"a": 1}},
}
ABORTED: dict[str, dict[str, Any]] = {
    CHAT: {"choices": [{"finish_reason": "abort"}]},
    MESSAGES: {"stop_reason": None},
    RESPONSES: {"usage": {"output_tokens": 0}},
}


@pytest.mark.parametrize("path", PREFILLED)
def test_a_prefills_answer(path: str) -> None:
    read, given = APIS[path].read_prefill, PREFILLED[path]
    assert read(orjson.dumps(given)) == (False, {"a": 1})
    assert read(orjson.dumps({**given, **ABORTED[path]}))[0]
    for name in given.keys() - {"stop_reason", "kv_transfer_params"}:
        with pytest.raises(msgspec.DecodeError):
            read(orjson.dumps({key: value for key, value in given.items() if key != name}))


@pytest.mark.parametrize(("member", "path"), [("max_tokens", MESSAGES), ("max_output_tokens", RESPONSES)])
def test_the_longest_answer(member: str, path: str) -> None:
    assert read_body(orjson.dumps({member: 7}), JSON, path).decisions.most_tokens == 7
    others = {"stop": '"max_tokens": 3, ', "metadata": {"max_tokens": 3}}
    assert read_body(orjson.dumps({**others, member: 7}), JSON, path).decisions.most_tokens == 7
    for none in (None, -1, 1.5, "many", [3], 10**15):
        assert read_body(orjson.dumps({**others, member: none}), JSON, path).decisions.most_tokens == inf


def test_a_long_member_is_not_copied() -> None:
    raw = b'{"prompt":"' + b"x" * 100_000 + b'","structured_outputs":{"regex":"' + b"y" * 100_000 + b'"}}'
    body = read_body(raw, JSON, TEXT)
    assert bytes(decode_body(body, None)) == raw
    for leg in (decode_body(body, None), prefill_body(body, {"a": 1})):
        assert isinstance(leg, BodyParts)
        assert sum(len(part) for part in leg.parts if isinstance(part, bytes)) < 200


LONG_VALUE = "x" * 5000
MODELS: list[tuple[dict[str, Any], str]] = [
    ({"model": "a", "prompt": "b"}, "a"),
    ({"prompt": LONG_VALUE, "model": "a"}, "a"),
    ({"user": LONG_VALUE, "model": "a", "prompt": LONG_VALUE, "metadata": {"model": "b"}}, "a"),
    ({"prompt": LONG_VALUE, "metadata": {"model": "b"}}, ""),
    ({"prompt": '"model":"b",' * 900, "model": "\u00e9"}, "\u00e9"),
    ({"model": ["a"], "prompt": LONG_VALUE}, ""),
    ({"model": None, "prompt": LONG_VALUE}, ""),
    ({"prompt": LONG_VALUE}, ""),
]


@pytest.mark.parametrize("size", [0, 20_000, 300_000])
@pytest.mark.parametrize(("members", "model"), MODELS)
def test_the_model_of_a_body(members: dict[str, Any], model: str, size: int) -> None:
    raw = orjson.dumps({**members, "documents": ["y" * size]} if size else members)
    body = read_in_slices(raw)[0] if size > LARGE_BYTES else read_body(raw, JSON, TEXT)
    assert model_of(body) == model
