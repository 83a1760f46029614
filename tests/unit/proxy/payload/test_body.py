"""Reading and cleaning a client's body, and the bodies of the legs."""

import json
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdx_proxy.http.errors import RefusedError
from pdx_proxy.http.messages import BodyParts
from pdx_proxy.payload.answer_budget import most_answer_tokens
from pdx_proxy.payload.apis import APIS
from pdx_proxy.payload.body import (
    LARGE_BYTES,
    Body,
    body_of,
    decode_body,
    identified,
    model_of,
    prefill_body,
    read_body,
    read_large_body,
    settling_body,
)
from pdx_proxy.payload.features import PromptReader
from pdx_proxy.payload.json_scanner import MAX_GAP_BYTES, SLICE_BYTES, JSONScanner
from pdx_proxy.payload.structure import MAX_BRACKETS, MAX_DEPTH, MAX_MEMBERS

FORBIDDEN = ("kv_transfer_params", "ec_transfer_params", "request_id")
KEYS = st.sampled_from([*FORBIDDEN, "prompt", "vllm_xargs", "messages", "n", "stream", "KV_TRANSFER_PARAMS"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(KEYS | st.text(max_size=4), VALUES, max_size=8)
JSON = "application/json"
TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
READER = PromptReader(key=True, limit=0)


def _read(raw: bytes) -> dict[str, Any]:
    """A body as an engine gets it."""
    return dict(orjson.loads(bytes(decode_body(read_body(raw, JSON, TEXT), None))))


def _read_in_slices(raw: bytes, slice_bytes: int = SLICE_BYTES, window_bytes: int = 128 * 1024) -> tuple[Body, int]:
    """A body read in slices, and the largest slice."""
    slices = read_large_body(raw, JSON, TEXT, READER, JSONScanner(raw, slice_bytes, window_bytes))
    largest = 0
    while True:
        try:
            largest = max(largest, next(slices))
        except StopIteration as end:
            return end.value, largest


def _legs(body: Body) -> tuple[bytes, ...]:
    """Everything that is sent for a body, and how it is served."""
    legs = (
        prefill_body(body, {"a": 1}),
        prefill_body(body, None),
        decode_body(body, {"a": 1}),
        decode_body(body, None),
    )
    decisions = body.decisions
    return (*map(bytes, legs), repr((decisions.stream, decisions.splits, body.features.key)).encode())


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
        _read_in_slices(raw)


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


@pytest.mark.parametrize("depth", [1, 100, 240, 248, 249, 250, 251, 252, 400, 1023, 1024, 5000])
@pytest.mark.parametrize("bracket", [b"[", b'{"a":', b'[0,"]}",{"\\"[":'])
def test_depth(depth: int, bracket: bytes) -> None:
    """`depth` is that of the value; the body itself is one more."""
    levels = depth // (2 if bracket.endswith(b'[":') else 1)
    value = bracket * levels + b"1" + {b"[": b"]", b'{"a":': b"}"}.get(bracket, b"}]") * levels
    raw = b'{"tools":' + value + b"}"
    refused = []
    for read in (
        lambda: read_body(raw, JSON, TEXT),
        lambda: _read_in_slices(raw, 64, 64),
        lambda: _read_in_slices(raw),
    ):
        try:
            read()
            refused.append(False)
        except RefusedError as refusal:
            assert "deeper than 250 levels" in refusal.message  # noqa: PT017
            refused.append(True)
    real = levels * (2 if bracket.endswith(b'[":') else 1) + 1
    assert refused == [real > MAX_DEPTH] * 3


def test_a_deep_member_after_a_long_text_is_refused() -> None:
    raw = b'{"prompt":"' + b"x" * 5000 + b'","tools":' + b"[" * 250 + b"]" * 250 + b"}"
    with pytest.raises(RefusedError, match="deeper than 250 levels"):
        read_body(raw, JSON, TEXT)


def test_of_a_long_text_the_brackets_do_not_count() -> None:
    raw = b'{"prompt":"' + b"[{" * 5000 + b'"}'
    assert decode_body(read_body(raw, JSON, TEXT), None) == raw


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
    assert most_answer_tokens(read_body(orjson.dumps({member: 7}), JSON, path)) == 7


SPELLED = st.builds(
    lambda body, escape, indent: json.dumps(body, ensure_ascii=escape, indent=indent).encode(),
    st.dictionaries(KEYS | st.text(max_size=4), VALUES | st.text(min_size=20), max_size=8),
    st.booleans(),
    st.none() | st.integers(0, 2),
)
INSERTED = st.sampled_from([*b'"\\,[]{}: 0\x80\xff\n', *(b"\\ud83d", b"\\ude00", b'\\"', b"")])
SIZES = st.sampled_from([(1, 32), (20, 33), (100, 64), (100, 4096), (SLICE_BYTES, 64)])


@settings(max_examples=400)
@given(SPELLED, st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2), INSERTED), max_size=2), SIZES, st.booleans())
def test_slices_give_the_same_verdict_and_the_same_bytes(
    raw: bytes, changes: list[tuple[float, int, bytes | int]], sizes: tuple[int, int], as_array: bool
) -> None:
    for place, dropped, inserted in changes:
        at = int(place * len(raw))
        raw = raw[:at] + (bytes([inserted]) if isinstance(inserted, int) else inserted) + raw[at + dropped :]
    try:
        expected = _legs(read_body(raw, JSON, TEXT, READER))
    except RefusedError:
        with pytest.raises(RefusedError):
            _read_in_slices(raw, *sizes)
    else:
        body, largest = _read_in_slices(bytes(raw) if not as_array else raw, *sizes)
        assert _legs(body) == expected
        assert largest <= sizes[0] + 8 * max(sizes[1], len(raw))


MIB = 1024 * 1024


def filled(head: bytes, unit: bytes, tail: bytes, size: int = 3 * MIB) -> bytes:
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


LARGE = {
    "text": (filled(b'{"stream":"on","prompt":"', b"some words ", b'"}'), True),
    "escapes": (filled(b'{"prompt":"', b'\\"\\\\\\n', b'"}'), True),
    "surrogates": (filled(b'{"prompt":"', b"\\ud83d\\ude00 ", b'"}'), True),
    "utf-8": (filled(b'{"prompt":"', "a€😀".encode(), b'"}'), True),
    "token IDs": (filled(b'{"prompt":[1', b",12345", b"]}"), True),
    "one long text in a list": (filled(b'{"prompt":["', b"words ", b'"]}'), True),
    "two texts": (filled(b'{"prompt":["', b"words ", b'","b"]}'), False),
    "junk": (filled(b'{"prompt":"x","junk":["a"', b',"","["', b"]}"), True),
    "numbers": (filled(b'{"prompt":"x","n":[1', b",1", b"]}"), False),
    "engine fields": (
        filled(b'{"prompt":"x","request_id":"', b"evil", b'","vllm_xargs":{"a":[2],"request_id":3}}'),
        True,
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_bodies_are_read_as_small_ones(name: str) -> None:
    raw, splits = LARGE[name]
    body, largest = _read_in_slices(raw)
    assert _legs(body) == _legs(read_body(raw, JSON, TEXT, READER))
    assert body.decisions.splits is splits
    assert largest <= 2 * SLICE_BYTES
    assert isinstance(body.shared, BodyParts)
    copied = sum(len(part) for part in body.shared.parts if isinstance(part, bytes))
    assert copied < 64 * 1024, "a large value is not copied"


def test_a_long_member_is_not_copied() -> None:
    raw = b'{"prompt":"' + b"x" * 100_000 + b'","structured_outputs":{"regex":"' + b"y" * 100_000 + b'"}}'
    body = read_body(raw, JSON, TEXT)
    assert bytes(decode_body(body, None)) == raw
    for leg in (decode_body(body, None), prefill_body(body, {"a": 1})):
        assert isinstance(leg, BodyParts)
        assert sum(len(part) for part in leg.parts if isinstance(part, bytes)) < 200


HOSTILE = {
    "objects": (filled(b'{"a":[{}', b",{}", b"]}"), f"more than {MAX_BRACKETS} arrays"),
    "a list": (filled(b"[{}", b",{}", b"]"), "not a valid JSON object"),
    "members": (filled(b'{"a":1', b',"a":1', b"}"), f"more than {MAX_MEMBERS} members"),
    "members of xargs": (filled(b'{"vllm_xargs":{"a":1', b',"a":1', b"}}"), f"more than {MAX_MEMBERS} members"),
    "truncated": (filled(b'{"a":[1', b',"b"', b""), "not a valid JSON object"),
    "truncated text": (filled(b'{"a":"', b"b", b""), "not a valid JSON object"),
    "backslashes": (filled(b'{"a":"', b"\\", b'q\\q"}'), "not a valid JSON object"),
    "continuation bytes": (filled(b'{"a":"', b"\x80", b'"}'), "not a valid JSON object"),
    "depth": (filled(b'{"a":', b"[", b""), f"deeper than {MAX_DEPTH} levels"),
    "depth late": (filled(b'{"a":[1', b",12345", b"," + b"[" * 249 + b"]" * 250 + b"}"), f"deeper than {MAX_DEPTH}"),
    "spaces": (filled(b'{"a":', b" ", b"1}"), f"longer than {MAX_GAP_BYTES} bytes"),
    "spaces in a list": (filled(b'{"a":["x",', b" ", b"1]}"), f"longer than {MAX_GAP_BYTES} bytes"),
    "a number": (filled(b'{"a":', b"1", b"}"), f"longer than {MAX_GAP_BYTES} bytes"),
    "a name": (filled(b'{"', b"a", b'":1}'), f"longer than {MAX_GAP_BYTES} bytes"),
    "an error at the end": (filled(b'{"a":[1', b",1", b",]}"), "not a valid JSON object"),
    "a missing value": (filled(b'{"a":[1', b",1", b",,1]}"), "not a valid JSON object"),
    "the wrong bracket": (filled(b'{"a":[1', b",1", b"}}"), "not a valid JSON object"),
    "a bad key": (filled(b'{"a":{"b":1', b',"c":"d"', b',"e":1,2:3}}'), "not a valid JSON object"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_large_bodies_are_refused_with_one_sentence(name: str) -> None:
    raw, message = HOSTILE[name]
    slices = read_large_body(raw, JSON, TEXT, READER)
    with pytest.raises(RefusedError, match=message) as refused:
        assert max(slices) <= 2 * SLICE_BYTES
    assert refused.value.status == 400
    assert len(refused.value.message) < 200


def test_small_bodies_have_the_same_bounds() -> None:
    for raw, message in (
        (b'{"a":[' + b"[]," * MAX_BRACKETS + b"1]}", "arrays"),
        (orjson.dumps({str(number): 1 for number in range(MAX_MEMBERS + 1)}), "members"),
        (orjson.dumps({"vllm_xargs": {str(number): 1 for number in range(MAX_MEMBERS + 1)}}), "members"),
    ):
        with pytest.raises(RefusedError, match=message):
            read_body(raw, JSON, TEXT)


def test_an_agents_chat_is_within_the_bounds() -> None:
    properties = {f"p{number}": {"type": ["string", "null"], "enum": ["[", "{"]} for number in range(10)}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}] * 800
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": ["b"]}'}}]
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": calls}] * 5000
    raw = orjson.dumps({"messages": messages, "tools": tools})
    for body in (read_body(raw, JSON, CHAT), _read_in_slices(raw)[0]):
        assert bytes(decode_body(body, None)) == raw


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
    body = _read_in_slices(raw)[0] if size > LARGE_BYTES else read_body(raw, JSON, TEXT)
    assert model_of(body) == model
