"""The heads of requests and answers as bytes."""

import pytest

from pdx_proxy.http.downstream.exchange import DateLine
from pdx_proxy.http.messages import answer_head, http_date, request_head


def test_a_request_as_bytes() -> None:
    assert request_head("POST", "/p", "h:1", [("A", "b")], 2) == (
        b"POST /p HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
    )
    assert request_head("GET", "/p", "h:1", [], 0) == b"GET /p HTTP/1.1\r\nHost: h:1\r\n\r\n"


DROPPED = [b"connection", b"content-length", b"date", b"keep-alive", b"server", b"transfer-encoding", b"x-request-id"]


def test_an_answers_head() -> None:
    headers = [*((name, b"theirs") for name in DROPPED), (b"x-mine", b"1")]
    assert answer_head(404, headers, {"x": "y"}) == b"HTTP/1.1 404 Not Found\r\nx-mine: 1\r\nx: y\r\n\r\n"
    assert answer_head(599, [], {}) == b"HTTP/1.1 599 \r\n\r\n"


@pytest.mark.parametrize("headers", [[], [(b"connection", b"x-a"), (b"x-a", b"1")]])
def test_the_gateways_own_date_is_in_every_head(headers: list[tuple[bytes, bytes]]) -> None:
    head = answer_head(200, [*headers, (b"date", b"theirs")], {"x": "y"}, b"date: mine\r\n")
    assert head == b"HTTP/1.1 200 OK\r\nx: y\r\ndate: mine\r\n\r\n"


@pytest.mark.parametrize("value", [b"close, X-Secret", b"x-secret", b" ,X-SECRET ,"])
@pytest.mark.parametrize("first", [False, True])
def test_headers_that_connection_names_are_dropped(value: bytes, first: bool) -> None:
    named, secret = (b"connection", value), (b"x-secret", b"1")
    headers = [(b"x-mine", b"1"), *([named, secret] if first else [secret, named])]
    assert answer_head(200, headers, {}) == b"HTTP/1.1 200 OK\r\nx-mine: 1\r\n\r\n"


def test_a_date() -> None:
    assert http_date(784111777) == "Sun, 06 Nov 1994 08:49:37 GMT"
    assert http_date(784111778) == "Sun, 06 Nov 1994 08:49:38 GMT"


def test_the_date_line_follows_the_clock_in_both_directions() -> None:
    line = DateLine()
    for now, second in [(777.0, b"37"), (777.9, b"37"), (778.0, b"38"), (777.5, b"37"), (0.5, b"")]:
        expected = b"Sun, 06 Nov 1994 08:49:%b GMT" % second if second else b"Sun, 06 Nov 1994 08:36:40 GMT"
        assert line.at(784111000 + now) == b"date: %b\r\n" % expected
