"""The counted requests have the headers that OpenAI's Python SDK sends."""

import asyncio

import openai

from benchmarks.instructions.cases import SDK_HEADERS
from tests.component.servers import serving

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
_BODY = b'{"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": []}'


async def test_the_sdk_sends_these_headers() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(_ANSWER % (len(_BODY), _BODY))
        await writer.drain()

    async with serving(serve) as port:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="EMPTY")
        await asyncio.to_thread(client.completions.create, model="m", prompt="p")
        client.close()

    lines = [line.decode() for line in heads[0].split(b"\r\n")[1:-2]]
    sent = dict(line.split(": ", 1) for line in lines)
    assert list(sent) == [*dict(SDK_HEADERS), "Content-Length"]
    name = "x-stainless-package-version"
    assert sent[name] == dict(SDK_HEADERS)[name] == openai.__version__, "update SDK_HEADERS"
