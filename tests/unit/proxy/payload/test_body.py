"""Reading and cleaning a client's body, and the bodies of the legs."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_proxy.http.errors import RefusedError
from pdx_proxy.payload.body import body_of, decode_body, prefill_body, read_body, settling_body

FORBIDDEN = ("kv_transfer_params", "ec_transfer_params", "request_id")
KEYS = st.sampled_from([*FORBIDDEN, "prompt", "vllm_xargs", "messages", "n", "stream", "KV_TRANSFER_PARAMS"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(KEYS | st.text(max_size=4), VALUES, max_size=8)
JSON = "application/json"


def _read(raw: bytes) -> dict[str, Any]:
    """A body as an engine gets it."""
    return dict(orjson.loads(decode_body(read_body(raw, JSON), None)))


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
    body = read_body(raw, JSON)
    assert body.fields == {"stream": False, "prompt": "b"}
    for leg in (decode_body(body, None), decode_body(body, {}), prefill_body(body, {})):
        assert (leg.count(b"prompt"), leg.count(b"stream")) == (1, 1)


VALUES_AS_THEY_CAME = (
    b'{"prompt":"a \\u00e9 \xc3\xa9 \\/","seed":12345678901234567890123,"temperature":1.10,"stop":[ ]}'
)


def test_values_are_not_changed() -> None:
    assert decode_body(read_body(VALUES_AS_THEY_CAME, JSON), None) == VALUES_AS_THEY_CAME


NOT_JSON = [
    *(
        b'{"a":"\\q"}',
        b'{"a":"\n"}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xc0\xaf"}',
        b'{"a":{"b":"\xed\xa0\x80"}}',
    ),
    *(b'{"a":01}', b'{"a":NaN}', b'{"n":1e999}', b'{"a":yes}', b'{"a":[1,]}'),
    *(b'{"\xff":1}', b"{}{}", b'{"a":1}x'),
]


@pytest.mark.parametrize("raw", NOT_JSON)
def test_lenient_json_is_refused(raw: bytes) -> None:
    with pytest.raises(RefusedError, match="json_invalid"):
        read_body(raw, JSON)


@given(BODIES)
def test_legs_carry_the_gateways_parameters_alone(body: dict[str, Any]) -> None:
    read = read_body(orjson.dumps(body), JSON)
    prefill = orjson.loads(prefill_body(read, {"mine": 1}))
    assert prefill["kv_transfer_params"] == {"mine": 1}
    assert (prefill["max_tokens"], prefill["stream"]) == (1, False)
    assert orjson.loads(decode_body(read, {"mine": 2})) == {**_clean(body), "kv_transfer_params": {"mine": 2}}
    assert "kv_transfer_params" not in orjson.loads(decode_body(read, None))


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_refused(raw: bytes) -> None:
    try:
        body = read_body(raw, JSON)
    except RefusedError as refusal:
        document = orjson.loads(refusal.body())["error"]
        found = (document.keys(), document["code"])
    else:
        assert isinstance(orjson.loads(decode_body(body, None)), dict)
        found = (set(), 200)
    assert found[1] == 200 or found == ({"message", "type", "param", "code"}, 400)


@pytest.mark.parametrize("depth", [1, 100, 240, 249, 250, 251, 252, 253, 254, 400, 1023, 1024, 5000])
def test_every_accepted_body_can_be_written(depth: int) -> None:
    raw = b'{"tools":' + b"[" * depth + b"]" * depth + b"}"
    try:
        body = read_body(raw, JSON)
    except RefusedError:
        refused = True
    else:
        refused = False
        decode_body(body, {"a": {"b": [1]}})
        prefill_body(body, {"a": {"b": [1]}})
    assert refused is (depth > 253)


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
        assert decode_body(read_body(b"{}", content_type), None) == b"{}"
    else:
        with pytest.raises(RefusedError, match="Unsupported Media Type"):
            read_body(b"{}", content_type)


TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"


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
    leg = orjson.loads(prefill_body(body_of(body), {}))
    assert leg == {
        "prompt": "a",
        "seed": 1,
        "stream": False,
        "max_tokens": 1,
        "ignore_eos": True,
        "max_completion_tokens": 1,
        "kv_transfer_params": {},
    }
    assert orjson.loads(decode_body(body_of(body), None)) == body


def test_settling_leg_is_short() -> None:
    assert orjson.loads(settling_body(TEXT, {"a": 1}, 7, "fresh")) == {
        "prompt": ".",
        "max_tokens": 7,
        "ignore_eos": True,
        "cache_salt": "fresh",
        "kv_transfer_params": {"a": 1},
    }
    assert orjson.loads(settling_body(CHAT, {}, 1, "fresh"))["messages"] == [{"role": "user", "content": "."}]
