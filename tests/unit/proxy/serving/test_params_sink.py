"""Which bytes of an answer a client receives instead of hand-off parameters, however the answer is divided."""

import json
import re
import sys

import pytest

from pdx_proxy.serving.params_sink import ParamsSink, without_params

VALUE = {"remote_host": "10.0.0.7", "remote_block_ids": [[1, 2]], "note": '}{"\\', "deep": {"a": {"b": 1}}}
LAST = {"choices": [{"text": 'x "kv_transfer_params":{"a":1}', "finish_reason": "stop"}], "kv_transfer_params": VALUE}
FIRST = {"choices": [{"text": "y"}], "kv_transfer_params": None}
USAGE = {"choices": [], "usage": {"total_tokens": 3}, "kv_transfer_params": {}}


def compact(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def events() -> bytes:
    return b"".join(b"data: %b\n\n" % compact(each) for each in (FIRST, LAST, FIRST, LAST, USAGE)) + b"data: [DONE]\n\n"


def chunked(stream: bytes, size: int) -> bytes:
    parts = [stream[at : at + size] for at in range(0, len(stream), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def dechunked(raw: bytes) -> bytes:
    body = b""
    while raw:
        head, _, raw = raw.partition(b"\r\n")
        size = int(head, 16)
        body, raw = body + raw[:size], raw[size + 2 :]
    return body


class Kept:
    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


def relayed(data: bytes, size: int) -> bytes:
    kept = Kept()
    sink = ParamsSink(kept)
    for at in range(0, len(data), size):
        sink.write(data[at : at + size])
    sink.flush()
    return kept.data


def check(stream: bytes) -> None:
    found = [json.loads(each.removeprefix(b"data: ")) for each in stream.split(b"\n\n") if each.startswith(b"data: {")]
    hidden = {**LAST, "kv_transfer_params": None}
    assert found == [FIRST, hidden, FIRST, hidden, USAGE]
    assert stream.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 23, 64, 10_000])
def test_values_are_hidden_however_the_stream_is_divided(size: int) -> None:
    stream = events()
    shown = relayed(stream, size)
    assert len(shown) == len(stream)
    check(shown)


@pytest.mark.parametrize("size", [1, 5, 100, 10_000])
def test_the_framing_of_chunks_stays_right(size: int) -> None:
    """vLLM sends each event as one chunk; what lies between may divide the value, but not its name."""
    stream = events()
    begins = [found.end() for found in re.finditer(rb'"kv_transfer_params":\{"remote', stream)]
    assert len(begins) == 2
    parts = [stream[: begins[0] + 9], stream[begins[0] + 9 : begins[1] + 3], stream[begins[1] + 3 :]]
    raw = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    check(dechunked(relayed(raw, size)))


@pytest.mark.parametrize("stream", [False, True])
def test_complete_answers(stream: bool) -> None:
    assert json.loads(without_params(compact(LAST), stream=stream)) == {**LAST, "kv_transfer_params": None}
    assert without_params(compact(FIRST), stream=stream) == compact(FIRST)
    check(without_params(events(), stream=True))


def test_what_has_no_filled_value_passes_at_once() -> None:
    event = b"data: %b\n\n" % compact(FIRST)
    assert ParamsSink().change(event) is event
    assert relayed(b'{"a":"kv_transfer_params', 3) == b'{"a":"kv_transfer_params'


@pytest.mark.parametrize("size", [1, 5, 30, 10_000])
def test_a_clients_schema_that_an_answer_repeats_stays_as_it_is(size: int) -> None:
    schema = {"properties": {"kv_transfer_params": {"type": "object"}, "x": {"kv_transfer_params": {"do": 1}}}}
    stream = b"data: %b\n\n" % compact({"tools": [schema], "kv_transfer_params": VALUE})
    assert json.loads(relayed(stream, size)[6:]) == {"tools": [schema], "kv_transfer_params": None}


def test_no_byte_of_a_whole_answer_is_held_back() -> None:
    """Its last byte may begin a member's name."""
    body = compact({"kv_transfer_params": VALUE}) + b'"'
    shown = without_params(body, stream=False)
    assert (len(shown), shown[-1:]) == (len(body), b'"')
    assert json.loads(shown[:-1]) == {"kv_transfer_params": None}


@pytest.mark.parametrize(
    "value",
    [
        b'"%b"' % (b"e" * (8 << 20)),
        b'"' * (4 << 20),
        b'"a",' * (2 << 20),
        b'{"a":' * (1 << 20) + b"}" * (1 << 20),
        b"{}," * (2 << 20),
        b'"' + rb"\"" * (4 << 20),
        b'"' + b"\\" * (4 << 20),
        b"[" * (8 << 20),
    ],
)
def test_a_value_of_many_megabytes_takes_few_steps_and_is_hidden(value: bytes) -> None:
    """An engine that sends one must not hold up the requests of others."""
    data = b'{"kv_transfer_params":{"remote_host":' + value
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        shown = without_params(data, stream=False)
    finally:
        sys.setprofile(None)
    assert (len(shown), shown.strip()) == (len(data), b'{"kv_transfer_params":null')
    assert calls < 3000


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_what_follows_a_value_with_too_many_objects_is_hidden(size: int) -> None:
    value = b'{"remote_x":[%b]}' % b",".join([b"{}"] * 300)
    raw = b'{"id":1,"kv_transfer_params":%b,"text":"x"}' % value
    shown = relayed(raw, size)
    assert (len(shown), shown.rstrip()) == (len(raw), b'{"id":1,"kv_transfer_params":null')
    lines = chunked(raw, 100)
    assert dechunked(relayed(lines, size)) == shown
