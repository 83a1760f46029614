"""The first requests to a server that refuses them: one sentence that names what to write instead."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pdx_cli.bench.calibration import calibrate, model_of
from pdx_cli.bench.load.connection import Server
from pdx_cli.bench.load.generator import Shape
from pdx_cli.bench.load.workload import Fixed
from pdx_cli.errors import CommandError
from tests.component.servers import serving

INVALID_KEY = '{"error": {"message": "Invalid key."}}'
OTHER = "write the URL of an OpenAI-compatible server that runs"


@asynccontextmanager
async def answering(status: str, body: str) -> AsyncIterator[Server]:
    """A server that answers every request with this, once for each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"Content-Length: " in head:
            await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
        writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()

    async with serving(serve) as port:
        yield Server.of(f"http://127.0.0.1:{port}/v1")


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        ("200 OK", "<html></html>", f"URL/v1/models did not answer with JSON; {OTHER}."),
        ("200 OK", '{"data": []}', f"URL/v1/models lists no model; name it with --model, or {OTHER}."),
        ("401 Unauthorized", "no key", "URL/v1/models answered 401: no key; set OPENAI_API_KEY."),
    ],
)
async def test_a_server_without_a_model(status: str, body: str, text: str) -> None:
    async with answering(status, body) as server:
        with pytest.raises(CommandError) as found:
            await model_of(server, {})
    assert str(found.value).replace(server.url, "URL") == text


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (
            "404 Not Found",
            '{"error": {"message": "No model m.", "code": 404}}',
            "URL refuses a first request with 404: No model m.",
        ),
        ("401 No", INVALID_KEY, "URL refuses a first request with 401: Invalid key; set OPENAI_API_KEY."),
        ("404 No", "<html>\n<p>No</p>\n</html>", "URL refuses a first request with 404: <html> <p>No</p> </html>."),
        ("200 OK", 'data: {"error": {"message": "Out of memory."}}\n\n', "URL failed a first request: Out of memory."),
        ("200 OK", "", "URL failed a first request: the answer has no token."),
    ],
)
async def test_a_server_that_refuses_the_requests(status: str, body: str, text: str) -> None:
    async with answering(status, body) as server:
        with pytest.raises(CommandError) as found:
            await calibrate(server, Shape("m"), Fixed(20, 2), random.Random(0), "salt")
    assert str(found.value).replace(server.url, "URL") == text
