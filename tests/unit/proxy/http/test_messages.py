"""The heads of requests and answers as bytes."""

import pytest

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


@pytest.mark.parametrize("value", [b"close, X-Secret", b"x-secret", b" ,X-SECRET ,"])
@pytest.mark.parametrize("first", [False, True])
def test_headers_that_connection_names_are_dropped(value: bytes, first: bool) -> None:
    named, secret = (b"connection", value), (b"x-secret", b"1")
    headers = [(b"x-mine", b"1"), *([named, secret] if first else [secret, named])]
    assert answer_head(200, headers, {}) == b"HTTP/1.1 200 OK\r\nx-mine: 1\r\n\r\n"


def test_a_date() -> None:
    assert http_date(784111777) == "Sun, 06 Nov 1994 08:49:37 GMT"
    assert http_date(784111778) == "Sun, 06 Nov 1994 08:49:38 GMT"
