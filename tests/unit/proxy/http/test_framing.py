"""Bytes of an answer that are no body: they are counted, and too many of them are a failure of the engine."""

from collections.abc import Callable, Iterator
from itertools import repeat

import pytest

from pdx_proxy.http.upstream.connection import Connection
from pdx_proxy.http.upstream.failures import LostConnection
from tests.unit.proxy.http.test_connection import Taken, connection

KIB = 1024
TOTAL = 160 * KIB
STREAM, JSON = (
    b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % kind
    for kind in (b"text/event-stream", b"application/json")
)
FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "an extension without end": lambda: (piece for piece in (b"5;", *repeat(b"a" * 1000, 5000))),
    "in large pieces": lambda: (piece for piece in (b"5;x=", *repeat(b"a" * 60_000, 100))),
    "quoted": lambda: (piece for piece in (b'5;x="', *repeat(b"a;" * 500, 5000))),
    "extensions of many tiny chunks": lambda: repeat(b"1;" + b"a" * 60 * KIB + b"\r\nx\r\n", 100),
    "short ones of very many chunks": lambda: repeat((b"1;" + b"a" * 200 + b"\r\nx\r\n") * 100, 100),
    "trailers": lambda: (piece for piece in (b"0\r\n", *repeat(b"x-a: b\r\n", 100_000))),
    "long trailers": lambda: (piece for piece in (b"0\r\n", *repeat(b"x-a: " + b"b" * 10_000 + b"\r\n", 500))),
    "a trailer without end": lambda: (piece for piece in (b"0\r\nx-a: ", *repeat(b"b" * 1000, 5000))),
    "a name of a trailer without end": lambda: (piece for piece in (b"0\r\n", *repeat(b"b" * 1000, 5000))),
    "trailers in the piece of the last chunk": lambda: iter([b"1\r\nx\r\n0\r\n" + b"x-a: b\r\n" * 15_000 + b"\r\n"]),
}
OF_STREAMS = {"extensions of many tiny chunks", "short ones of very many chunks"}
"""Of other answers the gateway keeps no framing, so these cost no memory."""


def received(made: Connection, pieces: Iterator[bytes]) -> int:
    """Return how many bytes are accepted."""
    total = 0
    for piece in pieces:
        if made.lost is not None or made.answer.complete:
            break
        made.data_received(piece)
        total += len(piece)
    return total


@pytest.mark.parametrize("relayed", [False, True])
@pytest.mark.parametrize("head", [STREAM, JSON])
@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_framing_is_a_failure_of_the_engine(kind: str, head: bytes, relayed: bool) -> None:
    if kind in OF_STREAMS and (relayed or head is JSON):
        return
    made, wire = connection()
    made.data_received(head)
    if relayed:
        made.data_received(b"5\r\nfirst\r\n")
        made.relay(Taken(), raw=True)
    assert received(made, FLOODS[kind]()) <= 400 * KIB
    assert isinstance(made.lost, Exception)
    assert wire.closed
    assert not made.answer.complete
    with pytest.raises(LostConnection):
        made.check()
    assert len(made.answer.headers) == 2
    assert sum(map(len, made.answer.raw)) <= 400 * KIB


@pytest.mark.parametrize("head", [STREAM, JSON])
def test_ordinary_framing_is_no_failure(head: bytes) -> None:
    """Small chunks, extensions and trailers below the limit."""
    made, _ = connection()
    made.data_received(head)
    for piece in (b"14\r\n0123456789abcdefghij\r\n" * 10_000, b"1;" + b"a" * 60 * KIB, b"\r\nx\r\n", b"0\r\n"):
        made.data_received(piece)
    for piece in repeat(b"x-a: " + b"b" * 1000 + b"\r\n", 50):
        made.data_received(piece)
    made.data_received(b"\r\n")
    assert made.answer.complete
    assert made.reusable
    assert (made.answer.size, len(made.answer.headers)) == (200_001, 2), "a trailer is no header"


@pytest.mark.parametrize("relayed", [False, True])
@pytest.mark.parametrize("head", [STREAM, JSON], ids=["stream", "json"])
@pytest.mark.parametrize("size", [1, 2, 7, 15])
@pytest.mark.parametrize("read", [512, 8 * KIB, 256 * KIB])
def test_very_many_tiny_chunks_are_a_failure(read: int, size: int, head: bytes, relayed: bool) -> None:
    """After a bounded amount of work, however many of them one read has."""
    made, wire = connection()
    made.data_received(head)
    if relayed:
        made.data_received(b"5\r\nfirst\r\n")
        made.relay(Taken(), raw=head is STREAM)
    flood = (b"%x\r\n%b\r\n" % (size, b"x" * size)) * 40_000
    assert received(made, (flood[begin : begin + read] for begin in range(0, len(flood), read))) <= max(read, 40 * KIB)
    assert made.answer.size <= 1024 * size + 16 * KIB
    assert wire.closed
    with pytest.raises(LostConnection, match="too small"):
        made.check()


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_a_few_are_not(count: int) -> None:
    made, _ = connection()
    made.data_received(STREAM + b"1\r\nx\r\n" * count + b"0\r\n\r\n")
    assert made.reusable
    assert made.answer.size == count


def test_an_ordinary_stream_may_arrive_byte_by_byte() -> None:
    made, _ = connection()
    made.data_received(STREAM)
    for byte in (b"32\r\n" + b"x" * 50 + b"\r\n") * 300 + b"0\r\n\r\n":
        made.data_received(bytes((byte,)))
    assert made.reusable


def test_a_later_answer_of_the_connection_has_counts_of_its_own() -> None:
    made, _ = connection()
    for _ in range(3):
        made.data_received(JSON + b"1;" + b"a" * 60 * KIB + b"\r\nx\r\n0\r\nx-a: " + b"b" * 60_000 + b"\r\n\r\n")
        assert made.reusable
        made.send(b"request", b"")


@pytest.mark.parametrize("size", [16, 100, 16 * KIB])
def test_a_relayed_stream_without_end_is_no_failure(size: int) -> None:
    made, _ = connection()
    sink = Taken()
    made.data_received(STREAM + b"5\r\nfirst\r\n")
    made.relay(sink, raw=True)
    chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
    for _ in range(TOTAL // len(chunk)):
        made.data_received(chunk)
    assert made.lost is None
    assert sink.data == chunk * (TOTAL // len(chunk))
