"""An engine's bytes become an answer, however they are divided."""

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_proxy.http.upstream.connection import Connection
from pdx_proxy.http.upstream.failures import EngineFailure, LostConnection

EVENTS = b"data: one\n\ndata: two\n\ndata: [DONE]\n\n"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"b\r\ndata: one\n\n\r\nb\r\ndata: two\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 36\r\nContent-Type: application/json\r\n\r\n" + EVENTS
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
GARBAGE = [
    b"\x16\x03\x01\x00\xff not http\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    EMPTY + EMPTY,
    SIZED + b"more",
]


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.reading = True
        self.closed = False

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    close = abort

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.sent += b"<EOF>"


class Taken:
    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


def connection(loop: asyncio.AbstractEventLoop | None = None) -> tuple[Connection, Wire]:
    if loop is None:
        loop = asyncio.new_event_loop()
        loop.close()  # nothing here waits
    made, wire = Connection("engine", loop), Wire()
    made.connection_made(wire)
    made.send(b"request", b"")
    return made, wire


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]


CUTS = st.lists(st.integers(0, 10_000), max_size=40)
ANSWERS = {CHUNKED: (200, EVENTS), SIZED: (404, EVENTS), EMPTY: (200, b"")}


@given(st.sampled_from(list(ANSWERS)), CUTS)
def test_any_cut_gives_the_same_answer(raw: bytes, cuts: list[int]) -> None:
    made, _ = connection()
    parts = pieces(raw, cuts)
    for part in parts[:-1]:
        made.data_received(part)
        assert not made.answer.complete
        assert not made.reusable
    made.data_received(parts[-1])
    assert (made.answer.status, made.answer.body) == ANSWERS[raw]
    assert made.answer.complete
    assert made.reusable
    assert made.answer.size == len(made.answer.body)


@pytest.mark.parametrize("raw", ANSWERS)
def test_byte_by_byte(raw: bytes) -> None:
    made, _ = connection()
    for index in range(len(raw)):
        assert not made.answer.complete
        made.data_received(raw[index : index + 1])
    assert (made.answer.status, made.answer.body) == ANSWERS[raw]
    assert made.reusable


@given(st.sampled_from([CHUNKED, SIZED]), CUTS, st.integers(0, 40), st.booleans())
def test_a_relay_misses_and_repeats_nothing(answer: bytes, cuts: list[int], begin: int, raw: bool) -> None:
    made, _ = connection()
    sink, parts, taken = Taken(), pieces(answer, cuts), b""
    relayed = False
    for number, part in enumerate(parts):
        made.data_received(part)
        if not relayed and made.answer.status and not made.answer.complete and number >= begin:
            taken, relayed = made.relay(sink, raw=raw), True
    if not relayed:
        taken = made.relay(sink, raw=raw)
    framed = answer.split(b"\r\n\r\n", 1)[1] if raw else EVENTS
    assert taken + sink.data == framed


ENDLESS = (
    b"HTTP/1.0 200 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
    b"HTTP/1.1 500 No\r\n\r\n",
)


def feed(made: Connection, wire: Wire, pieces: int) -> int:
    """Send pieces of 256 KiB as the loop does: until reading is paused. Return how many it took."""
    for number in range(pieces):
        if not wire.reading or wire.closed:
            return number
        made.data_received(b" " * (1 << 18))
    return pieces


@pytest.mark.parametrize("head", ENDLESS)
async def test_only_a_part_of_an_answer_is_received_before_somebody_looks(head: bytes) -> None:
    made, wire = connection(asyncio.get_running_loop())
    made.data_received(head)
    for _ in range(3):
        assert feed(made, wire, 32) <= 5
        assert made.progress()
        assert wire.reading
    feed(made, wire, 32)
    sink = Taken()
    held = made.relay(sink, raw=False)
    assert len(held) <= 20 << 18
    assert feed(made, wire, 32) == 32
    made.close()
    assert (made.last_chunk, made.answer.body) == (b"", b"")


async def test_an_interruption_leaves_reading_paused_until_its_owner_waits_on() -> None:
    """The leg may outlive its request: its settlement then reads the rest."""
    made, wire = connection(asyncio.get_running_loop())
    made.data_received(ENDLESS[0])
    feed(made, wire, 32)
    made.interrupt(EngineFailure("other", "failed"))
    with pytest.raises(EngineFailure):
        made.progress()
    assert not wire.reading
    made.interrupt(None)
    assert made.progress()
    assert wire.reading
    made.close()


async def test_a_client_that_is_slow_from_the_first_byte_pauses_the_engine() -> None:
    made, wire = connection(asyncio.get_running_loop())
    made.data_received(ENDLESS[0])
    feed(made, wire, 32)
    made.relay(Taken(), raw=False)
    made.pause()
    assert not wire.reading
    assert made.paused
    made.resume()
    assert feed(made, wire, 32) == 32, "what is relayed is not counted"
    made.close()


async def test_a_connection_is_reused_with_reading_on() -> None:
    """A long answer arrived ahead, and was relayed to its end."""
    made, wire = connection(asyncio.get_running_loop())
    size = 1 << 21
    made.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
    sent = feed(made, wire, 8)
    assert not wire.reading
    sink = Taken()
    held = made.relay(sink, raw=False)
    assert feed(made, wire, 8 - sent) == 8 - sent
    assert len(held) + len(sink.data) == size
    assert made.reusable
    made.rest()
    made.send(b"request", b"")
    made.data_received(EMPTY)
    assert (made.answer.complete, made.paused, wire.reading) == (True, False, True)


@pytest.mark.parametrize("head", ENDLESS)
async def test_an_endless_answer_is_whole_when_its_rest_does_not_matter(head: bytes) -> None:
    made, wire = connection(asyncio.get_running_loop())
    waiting = asyncio.ensure_future(made.whole())
    await asyncio.sleep(0)
    made.data_received(head)
    for _ in range(8):
        feed(made, wire, 32)
        await asyncio.sleep(0)
    answer = await asyncio.wait_for(waiting, 1.0)
    assert not answer.complete
    assert answer.size <= 10 << 18


@pytest.mark.parametrize("raw", GARBAGE)
@pytest.mark.parametrize("step", [1, 7, 10_000])
async def test_garbage_is_a_lost_connection(raw: bytes, step: int) -> None:
    made, wire = Connection("engine", asyncio.get_running_loop()), Wire()
    made.connection_made(wire)
    made.send(b"request", b"")
    waiting = asyncio.ensure_future(made.whole())
    await asyncio.sleep(0)
    for begin in range(0, len(raw), step):
        if not wire.closed:
            made.data_received(raw[begin : begin + step])
    assert wire.closed
    assert not made.reusable
    if step == 10_000:
        with pytest.raises(LostConnection, match="engine"):
            await waiting
    else:
        await asyncio.gather(waiting, return_exceptions=True)


async def test_an_end_that_comes_early_is_a_lost_connection() -> None:
    for raw in (CHUNKED, SIZED):
        for end in range(len(raw)):
            made, wire = Connection("engine", asyncio.get_running_loop()), Wire()
            made.connection_made(wire)
            made.send(b"request", b"")
            made.data_received(raw[:end]) if end else None
            made.connection_lost(None)
            with pytest.raises(LostConnection):
                await made.whole()


def test_bytes_without_a_request_end_the_connection() -> None:
    made, wire = connection()
    made.data_received(EMPTY)
    assert made.reusable
    made.data_received(b"x")
    assert not made.reusable
    assert wire.closed


def test_an_earlier_answer_is_never_the_next_one() -> None:
    """The engine closes an idle connection after the pool has given it out."""
    made, _ = connection()
    made.data_received(SIZED)
    made.connection_lost(None)
    with pytest.raises(LostConnection):
        made.send(b"another client's request", b"")
    assert made.answer.status == 0
    assert made.answer.body == b""


def test_a_half_closed_connection_is_not_reused() -> None:
    made, wire = connection()
    made.half_close()
    assert wire.sent.endswith(b"<EOF>")
    made.data_received(EMPTY)
    assert made.answer.complete
    assert not made.reusable


async def test_an_interruption_ends_the_wait() -> None:
    made, wire = Connection("engine", asyncio.get_running_loop()), Wire()
    made.connection_made(wire)
    made.send(b"request", b"")
    waiting = asyncio.ensure_future(made.head())
    await asyncio.sleep(0)
    failure = EngineFailure("other", "failed")
    made.interrupt(failure)
    with pytest.raises(EngineFailure) as raised:
        await waiting
    assert raised.value is failure
    assert made.lost is None


@pytest.mark.parametrize("half_closed", [False, True])
async def test_on_lost_is_called_once_for_an_early_end(half_closed: bool) -> None:
    """Not for the end that follows a half close."""
    made, calls = Connection("d", asyncio.get_running_loop()), []
    made.connection_made(Wire())
    made.send(b"POST", b"")
    made.on_lost.add(lambda: calls.append("lost"))
    if half_closed:
        made.half_close()
    made.connection_lost(None)
    assert calls == ([] if half_closed else ["lost"])


INTERIM = {
    "one": b"HTTP/1.1 100 Continue\r\n\r\n",
    "hints": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\nlink: </b>\r\n\r\n",
    "closing": b"HTTP/1.1 103 Early Hints\r\nconnection: close\r\n\r\n",
    "old": b"HTTP/1.0 100 Continue\r\n\r\n",
    "several": b"HTTP/1.1 102 Processing\r\n\r\n" * 5 + b"HTTP/1.1 103 Early Hints\r\n\r\n",
}


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("name", INTERIM)
async def test_interim_answers_are_skipped(name: str, step: int) -> None:
    made, _ = connection()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    data = INTERIM[name] + head + b"5\r\nfirst\r\n"
    for begin in range(0, len(data), step):
        made.data_received(data[begin : begin + step])
    assert made.lost is None
    assert (made.answer.status, len(made.answer.headers), made.answer.body) == (200, 2, b"first")
    assert made.relay(Taken(), raw=True) == b"5\r\nfirst\r\n"
    made.data_received(b"0\r\n\r\n")
    assert made.answer.complete
    assert made.reusable


async def test_an_interim_answer_with_a_body_is_a_failure() -> None:
    """Its bytes would become the beginning of the final answer."""
    made, wire = connection()
    made.data_received(b"HTTP/1.1 104 Early\r\ncontent-length: 5\r\n\r\nearly")
    assert wire.closed
    with pytest.raises(EngineFailure):
        made.check()


async def test_endless_interim_answers_are_a_failure() -> None:
    made, wire = connection()
    for _ in range(10_000):
        if made.lost is None:
            made.data_received(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
    assert wire.closed
    assert sum(map(len, made.answer.raw)) < 200 * 1024


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream"])
async def test_an_answer_without_a_length_ends_with_its_connection(version: bytes, kind: bytes) -> None:
    made, _ = connection()
    made.data_received(b"HTTP/%b 200 OK\r\ncontent-type: %b\r\nconnection: close\r\n\r\n{}" % (version, kind))
    assert not made.answer.complete
    made.connection_lost(None)
    made.check()
    assert (made.answer.complete, made.answer.body, made.reusable) == (True, b"{}", False)


@pytest.mark.parametrize("framing", [b"content-length: 9", b"transfer-encoding: chunked"])
@pytest.mark.parametrize("reset", [False, True])
async def test_an_answer_with_a_length_does_not_end_with_its_connection(framing: bytes, reset: bool) -> None:
    made, _ = connection()
    made.data_received(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n2\r\n{}")
    made.connection_lost(ConnectionResetError() if reset else None)
    assert not made.answer.complete
    with pytest.raises(LostConnection):
        made.check()
