"""The usage of an answer gets the cache hits of its prompt, however its bytes are divided."""

import json
from typing import Any

import pytest

from pdx_proxy.handoff.request import CacheHits
from pdx_proxy.payload.cache_hits import UNKNOWN, hits_of, with_hits
from pdx_proxy.serving.usage_sink import UsageSink

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
_TEXT = 'quoted "usage":{"cached_tokens":5}'
ANSWERS: dict[str, dict[str, Any]] = {
    CHAT: {
        "choices": [{"message": {"content": _TEXT}}],
        "usage": {"prompt_tokens": 1000, "prompt_tokens_details": {"x": None, "cached_tokens": 999, "y": 1}},
        "kv_transfer_params": None,
    },
    MESSAGES: {
        "content": [{"text": _TEXT}],
        "usage": {"input_tokens": 1, "output_tokens": 7, "cache_read_input_tokens": 999},
    },
    RESPONSES: {
        "tools": [{"parameters": {"cached_tokens": 4}}],
        "output": [{"text": _TEXT}],
        "usage": {"input_tokens": 1000, "input_tokens_details": {"cached_tokens": 999, "cached_tokens_per_turn": []}},
        "metadata": {"cached_tokens": 3},
    },
}


def _with(path: str, hits: int) -> dict[str, Any]:
    """The same answer with other hits."""
    found: dict[str, Any] = json.loads(json.dumps(ANSWERS[path]))
    usage = found["usage"]
    if path == MESSAGES:
        usage |= {"input_tokens": 1000 - hits, "cache_read_input_tokens": hits}
    else:
        usage["prompt_tokens_details" if path == CHAT else "input_tokens_details"]["cached_tokens"] = hits
    return found


@pytest.mark.parametrize("spaces", [False, True])
@pytest.mark.parametrize("path", ANSWERS)
@pytest.mark.parametrize("hits", [0, 7, 500, 1000])
def test_whole_answers(path: str, hits: int, spaces: bool) -> None:
    separators = (",", ":")
    body = json.dumps(ANSWERS[path], separators=separators).encode()
    body = body.replace(b'tokens":', b'tokens": ') if spaces else body
    assert hits_of(path, body) == 999
    assert json.loads(with_hits(path, body, hits)) == _with(path, hits)


@pytest.mark.parametrize("path", ANSWERS)
def test_an_answer_without_usage_is_unchanged(path: str) -> None:
    for body in (b"", b'{"usage":null}', b'{"usage":{"prompt_tokens":5,"prompt_tokens_details":null}}'):
        assert hits_of(path, body) == UNKNOWN
        assert with_hits(path, body, 3) == body


class _Client:
    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _content(stream: bytes) -> bytes:
    """The content of chunks; raises ValueError for wrong framing."""
    content = b""
    while stream:
        line, _, rest = stream.partition(b"\r\n")
        size = int(line, 16)
        assert rest[size : size + 2] == b"\r\n"
        content, stream = content + rest[:size], rest[size + 2 :]
    return content


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("hits", [0, 500, 1000])
@pytest.mark.parametrize("path", ANSWERS)
def test_streams_in_two_pieces(path: str, hits: int, raw: bool) -> None:
    last = b"data: " + json.dumps(ANSWERS[path], separators=(",", ":")).encode() + b"\n\n"
    parts = [b"data: first\n\n", last, b"data: [DONE]\n\n"]
    stream = b"".join(map(_chunk, parts)) + _chunk(b"") if raw else b"".join(parts)
    for cut in range(len(stream)):
        client, known = _Client(), CacheHits()
        known.tokens = hits
        sink = UsageSink(client, known, path, chunked=raw, fixed=False)
        sink.write(stream[:cut])
        sink.write(stream[cut:])
        sink.flush()
        content = _content(client.data) if raw else client.data
        found = json.loads(content.split(b"\n\n")[1].removeprefix(b"data: "))
        has_begun = (
            raw and -8 < cut - stream.find(last) <= last.find(b'"usage":{') and found["usage"] == ANSWERS[path]["usage"]
        )
        if has_begun:
            assert path == MESSAGES or hits == 1000, "only more digits do not fit into a chunk that has begun"
        else:
            assert found == _with(path, hits)


@pytest.mark.parametrize("size", [1, 2, 7, 37])
@pytest.mark.parametrize("hits", [0, 500, 1000])
@pytest.mark.parametrize("path", ANSWERS)
def test_events_that_are_divided_between_chunks(path: str, hits: int, size: int) -> None:
    """A proxy in front of the engine has framed its stream again."""
    last = b"data: " + json.dumps(ANSWERS[path], separators=(",", ":")).encode() + b"\n\n"
    stream = b"data: first\n\n" + last + b"data: [DONE]\n\n"
    client, known = _Client(), CacheHits()
    known.tokens = hits
    sink = UsageSink(client, known, path, chunked=True, fixed=False)
    for begin in range(0, len(stream), size):
        sink.write(_chunk(stream[begin : begin + size]))
    sink.write(_chunk(b""))
    sink.flush()
    events = _content(client.data).split(b"\n\n")
    assert events[::2] == [b"data: first", b"data: [DONE]"]
    assert json.loads(events[1].removeprefix(b"data: ")) == _with(path, hits)


@pytest.mark.parametrize("before", [b"", b"5\r\nbegun\r\n", b"un\r\n"], ids=["first", "second", "within-a-chunk"])
@pytest.mark.parametrize("path", ANSWERS)
@pytest.mark.parametrize("hits", [0, 1000])
def test_an_event_whose_parts_arrive_together(path: str, hits: int, before: bytes) -> None:
    """Wherever it is divided, and whether the end of the stream is there or not."""
    last = b"data: " + json.dumps(ANSWERS[path], separators=(",", ":")).encode() + b"\n\n"
    for cut in range(1, len(last)):
        for end in (b"", _chunk(b"data: [DONE]\n\n") + _chunk(b"")):
            client, known = _Client(), CacheHits()
            known.tokens = hits
            sink = UsageSink(client, known, path, chunked=True, fixed=False)
            sink.write(before + _chunk(last[:cut]) + _chunk(last[cut:]) + end)
            sink.flush()
            chunks = client.data.removeprefix(b"un\r\n")
            event = _content(chunks).removeprefix(b"begun").split(b"\n\n")[0]
            assert json.loads(event.removeprefix(b"data: ")) == _with(path, hits)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("size", [100, 50_000, 200_000])
@pytest.mark.parametrize("hits", [0, 500, 1000])
@pytest.mark.parametrize("path", ANSWERS)
def test_long_answers_that_are_no_streams(path: str, hits: int, size: int, fixed: bool) -> None:
    """Only the usage is held back. An answer whose length the client knows keeps it."""
    answer = {"long": "x" * 100_000, **ANSWERS[path]}
    body = json.dumps(answer, separators=(",", ":")).encode()
    client, known = _Client(), CacheHits()
    known.tokens = hits
    sink = UsageSink(client, known, path, chunked=False, fixed=fixed)
    for begin in range(0, len(body), size):
        sink.write(body[begin : begin + size])
        assert len(client.data) > min(begin, 100_000)
    sink.flush()
    fits = not fixed or (hits < 1000 and path != MESSAGES)  # there are digits enough
    assert len(client.data) == len(body) or not fixed
    assert json.loads(client.data) == (answer if not fits else {**answer, **_with(path, hits)})


def test_without_p_s_number_nothing_is_changed_or_held_back() -> None:
    client = _Client()
    sink = UsageSink(client, CacheHits(), CHAT, chunked=True, fixed=False)
    sink.write(b'data: {"usage":{"prompt')
    assert client.data == b'data: {"usage":{"prompt'
