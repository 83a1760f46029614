"""Error events and ends of streams with members of any type: they raise nothing, and failures stay failures."""

import json
import random
from typing import Any

import orjson
import pytest

from pdx_proxy.http.upstream.failures import BadAnswer
from pdx_proxy.payload.decisions import MESSAGES, RESPONSES
from pdx_proxy.payload.error_event import error_of
from pdx_proxy.payload.first_event import is_open
from pdx_proxy.serving.stream_end import Break, error_events, stream_end
from pdx_proxy.telemetry.spans import _usage_attributes
from tests.unit.proxy.payload.test_first_event import answer

DEEP = "[" * 600 + "]" * 600
FAILURES = {
    "type is a list": '{"type":"error","error":{"type":[]}}',
    "type is an object": '{"type":"error","error":{"type":{"a":1},"message":{}}}',
    "code is an object": '{"type":"error","code":{}}',
    "code is a list": '{"type":"error","code":[[]],"message":[]}',
    "code is a fraction": '{"type":"error","code":1.5}',
    "a failed response": '{"type":"response.failed","response":{"error":{"code":{}}}}',
    "a failed response without an error": '{"type":"response.failed","error":0,"response":[]}',
    "an error that is nested deep": '{"error":{"code":500,"x":' + DEEP + "}}",
    "a message that is nested deep": '{"type":"error","code":null,"message":' + DEEP + "}",
    "another error that is nested deep": '{"type":"error","error":{"x":' + DEEP + "}}",
    "a huge code": '{"error":{"code":18446744073709551615}}',
    "a huge code of a response": '{"type":"error","code":9223372036854775807}',
}
BROKEN = Break(500, "lost", "InternalServerError")


@pytest.mark.parametrize("kind", FAILURES)
def test_an_odd_error_is_a_failure_of_the_engine(kind: str) -> None:
    error = error_of(b"", FAILURES[kind].encode())
    assert error is not None
    assert 500 <= error.status <= 599
    assert isinstance(orjson.loads(error.body), dict)
    with pytest.raises(BadAnswer):
        is_open("d", answer(b"event: error\ndata: " + FAILURES[kind].encode() + b"\n\n"))


@pytest.mark.parametrize(
    "text", ['{"type":[]}', '{"type":{},"error":[]}', '{"error":{"code":true}}', '{"error":{"code":-9}}', "[[]]", DEEP]
)
def test_an_odd_event_that_is_no_error(text: str) -> None:
    assert error_of(b"", text.encode()) is None


def random_value(rng: random.Random, depth: int = 0) -> Any:
    if depth < 4 and rng.random() < 0.5:
        if rng.random() < 0.2:
            return [random_value(rng, depth + 1) for _ in range(rng.randrange(3))]
        names = ("type", "code", "error", "message", "response", "usage", "sequence_number")
        return {name: random_value(rng, depth + 1) for name in rng.sample(names, rng.randrange(5))}
    return rng.choice(
        (None, True, 0, 499, 500, 10**15, -(10**15), 0.5, 1e300, "", "error", "response.failed", "server_error", "\x00")
    )


def test_random_events_raise_nothing() -> None:
    rng = random.Random(7)
    for _ in range(3000):
        text = json.dumps(random_value(rng)).encode()
        for name in (b"", b"error", b"\xff"):
            error = error_of(name, text)
            assert error is None or 400 <= error.status <= 599
        for path in (MESSAGES, RESPONSES, "/v1/chat/completions"):
            assert error_events(path, 502, text).startswith((b"data: ", b"event: error\ndata: "))
            assert stream_end(path, text, BROKEN)


@pytest.mark.parametrize(
    ("digits", "following"),
    [
        ("7", 8),
        ("0", 1),
        ("9" * 15, 10**15),
        ("9" * 16, 0),
        ("9" * 20, 0),
        ("18446744073709551615", 0),
        ("1" * 5000, 0),
        ("-1", 0),
        ("1e5", 0),
        ("", 0),
        ("[]", 0),
        ("\u0663", 0),
    ],
)
def test_the_number_of_the_last_event(digits: str, following: int) -> None:
    chunk = f'data: {{"sequence_number":{digits},"type":"x"}}\n\n'.encode()
    data = stream_end(RESPONSES, chunk, BROKEN).partition(b"data: ")[2]
    assert orjson.loads(data)["sequence_number"] == following


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES, "/v1/completions"])
@pytest.mark.parametrize("member", [DEEP, "[]", "{}", "1", "null", '{"message":[]}', '{"message":' + DEEP + "}"])
def test_an_odd_error_of_a_stream_that_waited(member: str, path: str) -> None:
    end = error_events(path, 500, f'{{"type":"error","error":{member},"x":{DEEP}}}'.encode())
    assert b"\ndata: {" in b"\n" + end


@pytest.mark.parametrize("path", [RESPONSES, "/v1/completions"])
def test_a_response_that_is_nested_deep_is_no_exception(path: str) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    body = f'{{"usage":{{"output_tokens":0,"x":{deep}}}}}'.encode()
    assert is_open("d", answer(body, kind=b"application/json", complete=True), path)
    event = b"event: response.completed\ndata: " + body.replace(b'{"usage"', b'{"response":{"usage"') + b"}\n\n"
    assert is_open("d", answer(event), path)


@pytest.mark.parametrize("tokens", ["9" * 19, "9" * 900, "-1", "1e400", "[]", '"\xff"'])
def test_an_odd_usage_has_no_attribute(tokens: str) -> None:
    tail = f'"usage": {{"prompt_tokens": {tokens}, "completion_tokens": 3}}'.encode("latin-1")
    assert _usage_attributes(tail).get("gen_ai.usage.input_tokens") is None
