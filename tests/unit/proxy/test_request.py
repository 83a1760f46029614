"""Reading, cleaning and classifying a client's body."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_proxy.request import (
    RefusedError,
    can_split,
    clean,
    decode_body,
    error_body,
    prefill_body,
    read_body,
    settling_body,
)

FORBIDDEN = ("kv_transfer_params", "ec_transfer_params", "request_id")
KEYS = st.sampled_from([*FORBIDDEN, "prompt", "vllm_xargs", "messages", "n", "stream", "KV_TRANSFER_PARAMS"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(KEYS | st.text(max_size=4), VALUES, max_size=8)
JSON = "application/json"


def _escaped(text: str) -> str:
    return "".join(f"\\u{ord(character):04x}" if ord(character) < 0x10000 else character for character in text)


@given(BODIES)
def test_no_forbidden_key_gets_through(body: dict[str, Any]) -> None:
    cleaned = read_body(orjson.dumps(body), JSON)
    assert not set(FORBIDDEN) & cleaned.keys()
    extra = cleaned.get("vllm_xargs")
    assert not isinstance(extra, dict) or not set(FORBIDDEN) & extra.keys()
    kept = {key: value for key, value in body.items() if key not in (*FORBIDDEN, "vllm_xargs")}
    assert {key: value for key, value in cleaned.items() if key != "vllm_xargs"} == kept


@given(BODIES)
def test_no_spelling_of_a_key_gets_through(body: dict[str, Any]) -> None:
    pairs = [f'"{_escaped(key)}":{json.dumps(value)}' for key, value in body.items()]
    raw = ("{" + ",".join([*pairs, *pairs]) + "}").encode()
    assert read_body(raw, JSON) == clean(dict(body))


@given(BODIES)
def test_legs_carry_the_gateways_parameters_alone(body: dict[str, Any]) -> None:
    cleaned = read_body(orjson.dumps(body), JSON)
    prefill = orjson.loads(prefill_body(cleaned, {"mine": 1}))
    assert prefill["kv_transfer_params"] == {"mine": 1}
    assert (prefill["max_tokens"], prefill["stream"]) == (1, False)
    assert orjson.loads(decode_body(cleaned, {"mine": 2}))["kv_transfer_params"] == {"mine": 2}
    assert "kv_transfer_params" not in orjson.loads(decode_body(cleaned, None))


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_refused(raw: bytes) -> None:
    try:
        body = read_body(raw, JSON)
    except RefusedError as refusal:
        document = orjson.loads(refusal.body())["error"]
        found = (document.keys(), document["code"])
    else:
        found = (body.keys(), 200)
    assert found[1] == 200 or found == ({"message", "type", "param", "code"}, 400)


@pytest.mark.parametrize("depth", [1, 100, 240, 249, 250, 251, 252, 253, 254, 400, 1023, 1024, 5000])
def test_what_is_read_can_be_written(depth: int) -> None:
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
        assert read_body(b"{}", content_type) == {}
    else:
        with pytest.raises(RefusedError, match="Unsupported Media Type"):
            read_body(b"{}", content_type)


TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
SPLIT: list[tuple[str, dict[str, Any], bool]] = [
    (TEXT, {"prompt": "a"}, True),
    (TEXT, {"prompt": ""}, False),
    (TEXT, {}, False),
    (TEXT, {"prompt": None}, False),
    (TEXT, {"prompt": 5}, False),
    (TEXT, {"prompt": []}, False),
    (TEXT, {"prompt": [1, 2]}, True),
    (TEXT, {"prompt": ["a"]}, True),
    (TEXT, {"prompt": ["a", "b"]}, False),
    (TEXT, {"prompt": [[1, 2]]}, True),
    (TEXT, {"prompt": [[1], [2]]}, False),
    (TEXT, {"prompt": "a", "prompt_embeds": "x"}, False),
    (TEXT, {"prompt": "a", "n": 1}, True),
    (TEXT, {"prompt": "a", "n": None}, True),
    (TEXT, {"prompt": "a", "n": 2}, False),
    (TEXT, {"prompt": "a", "n": "1"}, False),
    (TEXT, {"prompt": "a", "n": 0}, False),
    (TEXT, {"prompt": "a", "best_of": 2}, False),
    (TEXT, {"prompt": "a", "use_beam_search": True}, False),
    (TEXT, {"prompt": "a", "echo": True}, False),
    (TEXT, {"prompt": "a", "echo": False}, True),
    (TEXT, {"prompt": "a", "prompt_logprobs": 0}, False),
    (TEXT, {"prompt": "a", "prompt_logprobs": None}, True),
    (CHAT, {"messages": []}, True),
    (CHAT, {"messages": [], "n": 3}, False),
    (CHAT, {"messages": [], "prompt_logprobs": 1}, False),
]


@pytest.mark.parametrize(("path", "body", "expected"), SPLIT)
def test_can_split(path: str, body: dict[str, Any], expected: bool) -> None:
    assert can_split(path, body) is expected


@given(st.sampled_from([TEXT, CHAT]), BODIES)
def test_can_split_judges_anything(path: str, body: dict[str, Any]) -> None:
    assert can_split(path, body) in (True, False)


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
    leg = orjson.loads(prefill_body(body, {}))
    assert leg == {
        "prompt": "a",
        "seed": 1,
        "stream": False,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "kv_transfer_params": {},
    }
    assert body["max_tokens"] == 50, "the client's body is not changed"


def test_settling_leg_is_short() -> None:
    assert orjson.loads(settling_body(TEXT, {"a": 1}, 7)) == {
        "prompt": ".",
        "max_tokens": 7,
        "kv_transfer_params": {"a": 1},
    }
    assert orjson.loads(settling_body(CHAT, {}, 1))["messages"] == [{"role": "user", "content": "."}]


def test_error_body() -> None:
    assert orjson.loads(error_body(418, "m", "t", "p")) == {
        "error": {"message": "m", "type": "t", "param": "p", "code": 418}
    }
