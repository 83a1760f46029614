"""What hostile clients do to HTTP itself: framing, smuggling, upgrades, forged headers, odd targets."""

import asyncio
from collections.abc import Callable
from typing import Final

from tests.component.hostile.clients import PATHS, Behaviour, Peer, body_of

WIRE: Final[list[Behaviour]] = []
_CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
_SMUGGLED: Final = b"POST /v1/completions HTTP/1.1\r\nHost: smuggled\r\nContent-Length: 2\r\n\r\n{}"
_TARGETS: Final = (
    "/metrics",
    "/pdx/state",
    "//evil/v1/models",
    "http://evil/metrics",
    "*",
    "/v1/%00",
    "/v1/../metrics",
)


def _writes(make: Callable[[Peer], bytes]) -> Behaviour:
    """A behaviour that writes these bytes and reads what comes."""

    async def behave(peer: Peer) -> None:
        await peer.send(make(peer))
        await peer.read()

    behave.__name__ = make.__name__
    WIRE.append(behave)
    return behave


def _behaves(behaviour: Behaviour) -> Behaviour:
    WIRE.append(behaviour)
    return behaviour


@_writes
def length_and_chunks(peer: Peer) -> bytes:
    framing = [b"Content-Length: 4\r\n", _CHUNKED]
    peer.rng.shuffle(framing)
    return peer.head(b"".join(framing)) + b"\r\n0\r\n\r\n" + _SMUGGLED


@_writes
def length_and_an_odd_coding(peer: Peer) -> bytes:
    """A coding that is empty or not understood, beside a length."""
    odd = peer.rng.choice(
        (b"", b" ", b"xchunked", b"identity", b"chunked, gzip", b"\x0bchunked", b'"chunked"', b",", b"chunked;q=1")
    )
    body = body_of(PATHS[0])
    return peer.post(body, b"Transfer-Encoding: " + odd + b"\r\n", PATHS[0]) + _SMUGGLED


@_writes
def lengths_that_differ(peer: Peer) -> bytes:
    odd = peer.rng.choice(
        (b"Content-Length: 5\r\n", b"Content-Length: 2, 5\r\n", b"Content-Length: +2\r\n", b"content-length:\t0x2\r\n")
    )
    return peer.post(b"{}", odd) + _SMUGGLED


@_writes
def headers_folded(peer: Peer) -> bytes:
    return peer.head(b"Transfer-Encoding:\r\n chunked\r\nX: y\r\n\tz\r\n") + b"\r\n0\r\n\r\n" + _SMUGGLED


@_writes
def bare_line_ends(peer: Peer) -> bytes:
    return peer.post(body_of(PATHS[0]), path=PATHS[0]).replace(
        b"\r\n", peer.rng.choice((b"\n", b"\r", b"\r\r\n", b"\x00\r\n"))
    )


@_writes
def chunk_sizes_odd(peer: Peer) -> bytes:
    sizes = (b"-2", b"+2", b"0x2", b"ffffffffffffffffff", b"2 ", b"\t2", b"", b"2\n{}", b"0" * 300_000 + b"2", b"g")
    return peer.head(_CHUNKED) + b"\r\n" + peer.rng.choice(sizes) + b"\r\n{}\r\n0\r\n\r\n" + _SMUGGLED


@_writes
def names_odd(peer: Peer) -> bytes:
    odd = peer.rng.choice(
        (b"Content-Length : 2\r\n", b" X: y\r\n", b": y\r\n", b"X\x00: y\r\n", b"X: \x01\r\n", b"X\r\n")
    )
    return peer.head(odd) + b"Content-Length: 2\r\n\r\n{}"


@_writes
def versions_odd(peer: Peer) -> bytes:
    version = peer.rng.choice((b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1.1", b"HTTP/11", b"ICY"))
    return peer.post(b"{}").replace(b"HTTP/1.1", version, 1)


@_writes
def http_10_in_chunks(peer: Peer) -> bytes:
    head = peer.head(_CHUNKED + b"Connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    return head + b"\r\n2\r\n{}\r\n0\r\n\r\n" + _SMUGGLED


@_writes
def hosts_odd(peer: Peer) -> bytes:
    odd = peer.rng.choice((b"", b"Host: a\r\nHost: b\r\n", b"Host: user@x/path\r\n", b"Host: \r\n", b"Host: [::\r\n"))
    return peer.post(b"{}").replace(b"Host: gateway\r\n", odd)


@_writes
def upgrade_h2c(peer: Peer) -> bytes:
    more = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    return peer.post(body_of(PATHS[0]), more, PATHS[0]) * 2


@_writes
def upgrade_websocket(peer: Peer) -> bytes:
    more = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n"
    return peer.head(more, "/v1/realtime", "GET") + b"\r\n" + b"\x81\x85" + b"\x00" * 9


@_writes
def preface_of_http_2(peer: Peer) -> bytes:
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 1000


@_writes
def hello_of_tls(peer: Peer) -> bytes:
    return b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + peer.rng.randbytes(600)


@_writes
def random_bytes(peer: Peer) -> bytes:
    return peer.rng.randbytes(peer.rng.choice((1, 50, 5000, 300_000)))


@_writes
def proxy_protocol(peer: Peer) -> bytes:
    return b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + peer.post(b"{}")


@_writes
def addresses_forged(peer: Peer) -> bytes:
    """Another client in each line and each request."""
    forged = b"".join(b"X-Forwarded-For: 9.9.%d.%d\r\n" % (peer.rng.randrange(256), each) for each in range(60))
    return peer.post(body_of(PATHS[0]), forged + b"Forwarded: for=1.1.1.1\r\nX-Real-IP: 2.2.2.2\r\n", PATHS[0])


@_writes
def addresses_odd(peer: Peer) -> bytes:
    odd = peer.rng.choice(
        (b"," * 7000, b"unknown", b"\xff", b"::1%eth0", b"999.1.1.1", b"1.2.3.4:99999", b"[::1", b"127.0.0.1, " * 600)
    )
    return peer.post(body_of(PATHS[0]), b"X-Forwarded-For: " + odd + b"\r\n", PATHS[0])


@_writes
def traces_odd(peer: Peer) -> bytes:
    odd = peer.rng.choice(
        (b"00-" + b"0" * 32 + b"-0-01", b"x" * 7000, b"ff-" + b"a" * 32 + b"-" + b"b" * 16 + b"-ff", b"\xff")
    )
    more = b"traceparent: " + odd + b"\r\ntracestate: " + odd[:500] + b"\r\nX-Request-Id: " + b"i" * 7000 + b"\r\n"
    return peer.post(body_of(PATHS[0]), more, PATHS[0])


@_writes
def targets_odd(peer: Peer) -> bytes:
    target = peer.rng.choice((*_TARGETS, "/" + "a" * 7000, "/" + "%2f" * 2000, "/v1/models/" + "x" * 7000))
    method = peer.rng.choice(("GET", "POST", "OPTIONS", "TRACE", "CONNECT", "DELETE", "M-SEARCH", "X" * 200))
    return peer.head(path=target, method=method) + b"\r\n"


@_behaves
async def expects_and_waits(peer: Peer) -> None:
    """It waits for 100 Continue, and then sends nothing."""
    await peer.send(peer.head(b"Expect: 100-continue\r\nContent-Length: 50000\r\n") + b"\r\n")
    await peer.read(2.0)
    await asyncio.sleep(3.0)


@_behaves
async def expects_and_sends(peer: Peer) -> None:
    body = body_of(PATHS[0])
    await peer.send(peer.post(body, b"Expect: 100-continue\r\n", PATHS[0]))
    await peer.read()


@_behaves
async def expects_much(peer: Peer) -> None:
    await peer.send(peer.post(b"{}", b"Expect: " + b"100-continue, " * 400 + b"the-unexpected\r\n") * 5)
    await peer.read()


@_behaves
async def idle_after_a_request(peer: Peer) -> None:
    await peer.send(peer.head(method="GET", path="/health") + b"\r\n")
    await asyncio.sleep(8.0)


@_behaves
async def blank_lines_for_ever(peer: Peer) -> None:
    await peer.send(b"\r\n" * 100_000)
    await peer.read()


@_behaves
async def ranges_and_conditions(peer: Peer) -> None:
    more = (
        b"Range: bytes="
        + b"0-1," * 1500
        + b"\r\nIf-None-Match: *\r\nAccept-Encoding: "
        + b"gzip;q=0.1," * 500
        + b"\r\n"
    )
    await peer.send(peer.head(more, "/v1/models", "GET") + b"\r\n")
    await peer.read()


@_behaves
async def cookies_and_keys(peer: Peer) -> None:
    """Many keys, of which one may be valid."""
    keys = (
        b"".join(b"Authorization: Bearer k%d\r\n" % each for each in range(50))
        + b"Cookie: "
        + b"a=b; " * 1000
        + b"\r\n"
    )
    await peer.send(peer.post(body_of(PATHS[0]), keys, PATHS[0]))
    await peer.read()
