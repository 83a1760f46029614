"""Reading a large body in slices, and the limits of every body."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdx_proxy.http.errors import RefusedError
from pdx_proxy.http.messages import BodyParts
from pdx_proxy.payload.body import Body, decode_body, prefill_body, read_body, read_large_body
from pdx_proxy.payload.json_scanner import SLICE_BYTES
from pdx_proxy.payload.structure import MAX_BRACKETS, MAX_DEPTH, MAX_MEMBERS
from tests.unit.proxy.payload.bodies import CHAT, HOSTILE, JSON, KEYS, READER, TEXT, VALUES, filled, read_in_slices


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
        lambda: read_in_slices(raw, 64, 64),
        lambda: read_in_slices(raw),
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
            read_in_slices(raw, *sizes)
    else:
        body, largest = read_in_slices(bytes(raw) if not as_array else raw, *sizes)
        assert _legs(body) == expected
        assert largest <= sizes[0] + 8 * max(sizes[1], len(raw))


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
    body, largest = read_in_slices(raw)
    assert _legs(body) == _legs(read_body(raw, JSON, TEXT, READER))
    assert body.decisions.splits is splits
    assert largest <= 2 * SLICE_BYTES
    assert isinstance(body.shared, BodyParts)
    copied = sum(len(part) for part in body.shared.parts if isinstance(part, bytes))
    assert copied < 64 * 1024, "a large value is not copied"


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
    for body in (read_body(raw, JSON, CHAT), read_in_slices(raw)[0]):
        assert bytes(decode_body(body, None)) == raw
