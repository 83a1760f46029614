"""The client of the counted cases sends the same number of requests over each connection."""

import asyncio
from collections import Counter

import pytest

from benchmarks.instructions.client import AnswerError, Client
from tests.component.servers import serving

_REQUEST = b"GET / HTTP/1.1\r\n\r\n"
_ANSWERS = {
    "length": [b"HTTP/1.1 200 OK\r\ncontent-", b"length: 2\r\n\r\n", b"{}"],
    "chunks": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n", b"0\r\n\r\n"],
    "refused": [b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"],
    "closed": [b"HTTP/1.1 200 OK\r\n"],
}


async def send(kind: str) -> Counter[object]:
    """Send twelve requests over four connections; return how many came over each."""
    received: Counter[object] = Counter()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(len(_REQUEST)):
            received[writer.get_extra_info("peername")] += 1
            for part in _ANSWERS[kind]:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            if kind == "closed":
                break

    def run(port: int) -> None:
        with Client(port, 4) as client:
            client.send(_REQUEST, 12)

    async with serving(serve) as port:
        await asyncio.to_thread(run, port)
    return received


@pytest.mark.parametrize("kind", ["length", "chunks"])
async def test_each_connection_sends_equally_many(kind: str) -> None:
    assert sorted((await send(kind)).values()) == [3, 3, 3, 3]


@pytest.mark.parametrize(("kind", "text"), [("refused", "429"), ("closed", "closed connection")])
async def test_an_answer_that_is_not_whole_ends_the_count(kind: str, text: str) -> None:
    with pytest.raises(AnswerError, match=text):
        await send(kind)
