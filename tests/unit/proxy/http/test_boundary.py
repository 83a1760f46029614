"""Where requests end: only there may a connection return to the fast path."""

import pytest

from pdx_proxy.http.downstream.boundary import RequestBoundary

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
WHOLE = {
    "no-body": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "length": POST + b"Content-Length: 5\r\n\r\nPOST ",
    "chunks": POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nPOST \r\n0\r\nX: y\r\n\r\n",
    "http-1.0": b"GET /health HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
    "upgrade": b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "upgrade-with-a-body": POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\n{} ",
}


@pytest.mark.parametrize("name", WHOLE)
def test_only_the_end_of_a_request_is_a_boundary(name: str) -> None:
    request = WHOLE[name]
    for cut in range(1, len(request)):
        boundary = RequestBoundary()
        boundary.follow(request[:cut])
        assert not boundary.is_reached(0)
        assert not boundary.is_reached(1)
        boundary.follow(request[cut:])
        assert boundary.is_reached(1)
        assert not boundary.is_reached(2), "aiohttp has found another number of requests"
        boundary.follow(WHOLE["length"][:-1])
        assert not boundary.is_reached(2)
        boundary.follow(WHOLE["length"][-1:])
        assert boundary.is_reached(2)


@pytest.mark.parametrize(
    "data", [b"nonsense\r\n\r\n", POST + b"Content-Length: x\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"]
)
def test_bytes_that_are_not_understood_have_no_boundary(data: bytes) -> None:
    boundary = RequestBoundary()
    boundary.follow(WHOLE["no-body"] + data)
    boundary.follow(WHOLE["no-body"])
    assert not any(boundary.is_reached(number) for number in range(5))
