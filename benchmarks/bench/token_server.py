"""A server that streams tokens at a constant rate and does nothing else: `token_server.py PORT TOKENS_PER_SECOND`."""

import asyncio
import re
import sys
from typing import cast

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"sim","choices":[{"index":0,"text":" abc",'
    b'"logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}\n\n'
)
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Stream(asyncio.Protocol):
    """One connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rate: float) -> None:
        self._loop = loop
        self._period = 1 / rate
        self._left = 0
        self._next = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        found = re.search(rb'"max_tokens":(\d+)', data)
        if found:
            self._left = int(found[1])
            self._transport.write(HEAD)
            self._next = self._loop.time()
            self._token()

    def _token(self) -> None:
        if self._transport.is_closing():
            return
        self._left -= 1
        self._transport.write(CHUNK if self._left else CHUNK + END)
        if self._left:
            self._next += self._period
            self._loop.call_at(self._next, self._token)


async def serve(port: int, rate: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stream(loop, rate), "127.0.0.1", port, backlog=2000)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
