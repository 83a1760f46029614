"""What follows a comment that has committed a stream: answers and errors as events."""

import json

import pytest

from pdx_proxy.serving.stream_end import error_events
from pdx_proxy.serving.stream_keep_alive import as_stream

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
JSON = b"content-type: application/json\r\n"
EVENT = b'data: {"a":1}\n\n'
ERROR = b'{"error":{"message":"no","type":"Bad Request","param":null,"code":400}}'
COMPLETIONS = "/v1/completions"


def _json(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\n%bcontent-length: %d\r\n\r\n%b" % (status, JSON, len(body), body)


def test_a_stream_goes_on_as_it_begins() -> None:
    framed = b"10\r\n" + EVENT + b"\r\n"
    assert as_stream(COMPLETIONS, HEAD + b"transfer-encoding: chunked\r\n\r\n" + framed, chunked=True) == framed
    assert as_stream(COMPLETIONS, HEAD + b"connection: close\r\n\r\n" + EVENT, chunked=False) == EVENT


def test_a_stream_that_came_whole() -> None:
    data = HEAD + b"content-length: %d\r\n\r\n" % len(EVENT) + EVENT
    assert as_stream(COMPLETIONS, data, chunked=True) == b"%x\r\n" % len(EVENT) + EVENT + b"\r\n0\r\n\r\n"
    assert as_stream(COMPLETIONS, data, chunked=False) == EVENT


def test_an_empty_stream_ends_once() -> None:
    data = HEAD + b"content-length: 0\r\n\r\n"
    assert as_stream(COMPLETIONS, data, chunked=True) == b"0\r\n\r\n"
    assert as_stream(COMPLETIONS, data, chunked=False) == b""


def test_an_answer_that_is_no_stream_is_one_event() -> None:
    body = b'{"choices":\n[]}'
    assert as_stream(COMPLETIONS, _json(200, body), chunked=False) == (b'data: {"choices": []}\n\ndata: [DONE]\n\n')


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"connection: close\r\n\r\n" + EVENT,
        HEAD + b"content-length: 99\r\n\r\n" + EVENT,
        b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: 99\r\n\r\n{",
    ],
    ids=["unframed", "unfinished-events", "unfinished-document"],
)
def test_answers_that_cannot_follow(data: bytes) -> None:
    assert as_stream(COMPLETIONS, data, chunked=True) is None


def test_an_error_is_an_event() -> None:
    assert as_stream(COMPLETIONS, _json(400, ERROR), chunked=False) == b"data: " + ERROR + b"\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (429, "rate_limit_error"), (503, "overloaded_error"), (502, "api_error")],
)
def test_errors_of_anthropic(status: int, kind: str) -> None:
    head, _, data = error_events("/v1/messages", status, ERROR).partition(b"\ndata: ")
    assert head == b"event: error"
    assert json.loads(data) == {"type": "error", "error": {"type": kind, "message": "no"}}
    own = b'{"type":"error","error":{"type":"mine","message":"yes"}}'
    assert json.loads(error_events("/v1/messages", status, own).partition(b"data: ")[2]) == json.loads(own)


def test_errors_of_the_responses_api() -> None:
    for status, code in ((400, "invalid_prompt"), (429, "rate_limit_exceeded"), (503, "server_error")):
        data = error_events("/v1/responses", status, ERROR).partition(b"data: ")[2]
        expected = {"type": "error", "code": code, "message": "no", "param": None, "sequence_number": 0}
        assert json.loads(data) == expected


@pytest.mark.parametrize("body", [b"", b"oops", b"[]", b'{"error":"Unauthorized"}', b"\xff"])
def test_errors_that_are_none_of_vllm(body: bytes) -> None:
    data = error_events(COMPLETIONS, 418, body).split(b"\n\n")[0].removeprefix(b"data: ")
    assert json.loads(data)["error"]["code"] == 418
