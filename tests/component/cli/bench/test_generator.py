"""The open-loop generator against a simulated engine and against servers that misbehave."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pdx_cli.bench.load.connection import Server
from pdx_cli.bench.load.generator import Generator, Shape, Step
from pdx_cli.bench.load.records import Failure, Record
from pdx_cli.bench.load.workload import Planned
from pdx_cli.errors import InputError
from pdx_sim import SimEngine, SimSettings
from tests.component.servers import serving

EVENT = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def requests(count: int, gap: float = 0.01, output: int = 8) -> list[Planned]:
    return [Planned(i, i * gap, 64, output, ((-1 - i, 64),)) for i in range(count)]


def step(planned: list[Planned], seconds: float = 1.0, drain: float = 60.0, warm_up: float = 0.0) -> Step:
    return Step(iter(planned), seconds, warm_up, drain, "salt")


@asynccontextmanager
async def generator(url: str, clock: Callable[[], float] = time.monotonic) -> AsyncIterator[Generator]:
    found = Generator(Server.of(url), Shape("sim"), clock)
    try:
        yield found
    finally:
        found.close()


Answer = Callable[[asyncio.StreamWriter, int], None]


@asynccontextmanager
async def scripted(answer: Answer) -> AsyncIterator[str]:
    """A server whose answers a test writes; it counts its requests."""
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            count += 1
            answer(writer, count)

    async with serving(serve) as port:
        yield f"http://127.0.0.1:{port}/v1"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def test_each_request_is_sent_and_counted() -> None:
    engine = SimEngine(SimSettings(decode_token_seconds=0.002, prefill_token_seconds=1e-5))
    await engine.start()
    try:
        async with generator(engine.url) as load:
            found = await load.run(step(requests(40), warm_up=0.1))
            before = engine.counts.connections
            await load.run(step(requests(1)))
            assert engine.counts.connections == before, "connections are used again"
    finally:
        await engine.stop()
    assert [record.index for record in found.records] == list(range(40))
    assert {record.failure for record in found.records} == {None}
    assert {(record.prompt_tokens, record.output_tokens) for record in found.records} == {(64, 8)}
    assert sum(record.warm_up for record in found.records) == 10
    for record in found.records:
        assert record.lateness >= -0.001
        assert record.sent <= record.first <= record.last <= record.ended
        assert sum(record.gaps) == pytest.approx(record.last - record.first)
    assert found.lateness.samples > 40


async def test_requests_that_were_never_sent_are_late() -> None:
    """A process that gets no CPU for the whole step has sent nothing, and is the limit."""
    times = iter([0.0, 0.0])

    async with generator("http://127.0.0.1:1", lambda: next(times, 100.0)) as tool:
        found = await tool.run(step(requests(5, gap=0.1), drain=1.0))
    assert found.records == ()
    assert found.lateness.most == pytest.approx(100.0)
    assert found.lateness.is_limit


async def test_answers_that_are_no_stream_of_tokens() -> None:
    def answer(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 1:
            writer.write(b"HTTP/1.1 503 No\r\nContent-Length: 5\r\n\r\nshed!")
        elif number == 2:
            writer.write(OK + chunk(EVENT))
            writer.close()
        elif number == 3:
            writer.write(OK + chunk(b'data: {"error": {"message": "lost"}}\n\n') + b"0\r\n\r\n")
        elif number == 4:
            writer.write(OK + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        elif number == 5:
            writer.write(b"SSH-2.0\r\n\r\n")
        else:
            writer.write(OK + chunk(EVENT) + b"0\r\n\r\n")

    async with scripted(answer) as url, generator(url) as load:
        found = await load.run(step(requests(6, gap=0.05)))
    failures = [record.failure for record in found.records]
    assert failures == [
        *(Failure.STATUS, Failure.CONNECTION, Failure.ERROR_EVENT, Failure.NO_TOKEN, Failure.CONNECTION, None),
    ]
    assert "503: shed!" in found.records[0].detail
    assert "no HTTP" in found.records[4].detail


async def test_an_idle_connection_that_the_server_closes_costs_no_request() -> None:
    def answer(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 2:  # on the connection of the first request: closed while the request was on its way
            writer.close()
        else:
            writer.write(OK + chunk(EVENT) + b"0\r\n\r\n")

    async with scripted(answer) as url, generator(url) as load:
        found = [(await load.run(step(requests(1)))).records for _ in range(2)]
    assert [record.failure for records in found for record in records] == [None, None]


async def test_what_has_no_end_after_the_step_has_failed() -> None:
    skipped = 0.0

    def skip_drain(records: list[Record], waiting: list[float]) -> bool:
        """Once each request has its first token, the step and its drain are over."""
        nonlocal skipped
        assert not records
        skipped = 0.0 if load.open < 3 or waiting else 1000.0
        return False

    clock = lambda: time.monotonic() + skipped  # noqa: E731
    async with scripted(lambda writer, _: writer.write(OK + chunk(EVENT))) as url, generator(url, clock) as load:
        found = await load.run(step(requests(3), seconds=300.0), skip_drain)
        assert [record.failure for record in found.records] == [Failure.UNFINISHED] * 3
        assert all(record.first > 0 for record in found.records)
        assert load.open == 0


async def test_a_step_ends_when_its_result_is_certain() -> None:
    async with scripted(lambda _writer, _number: None) as url, generator(url) as load:
        found = await load.run(step(requests(4), seconds=300.0), lambda _records, waiting: len(waiting) == 4)
    assert found.stopped
    assert found.seconds < 300
    assert [record.failure for record in found.records] == [Failure.UNFINISHED] * 4


async def test_nobody_listens() -> None:
    async with generator("http://127.0.0.1:1") as load:
        found = await load.run(step(requests(1)))
    assert found.records[0].failure is Failure.CONNECTION
    assert found.records[0].detail


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(InputError, match="is not the URL of a server"):
        Server.of(url)


def test_urls() -> None:
    assert Server.of("http://h:81/v1/") == Server("h", 81, False, "")
    assert Server.of("https://h/api/v1") == Server("h", 443, True, "/api")
    assert Server.of("h:8000") == Server("h", 8000, False, "")
