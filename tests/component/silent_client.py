"""A client with a small receive buffer that sends a request and reads nothing."""

import asyncio
import json
import socket
from typing import Any, Self

_BUFFER = 2048
"""Bytes that the kernel is to keep for the client; it doubles them, and has a minimum of its own."""


class SilentClient:
    """`async with SilentClient(host, port) as client: await client.send(path, body)`."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)  # before connecting: it limits the window
        self._socket.setblocking(False)

    async def __aenter__(self) -> Self:
        await asyncio.get_running_loop().sock_connect(self._socket, self._address)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect; what was not read makes this a reset."""
        self._socket.close()

    async def send(self, path: str, body: Any) -> None:
        """Send a POST."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        await asyncio.get_running_loop().sock_sendall(self._socket, request)

    async def read(self) -> bytes:
        """Some of the answer, for a client that reads at last."""
        return await asyncio.get_running_loop().sock_recv(self._socket, 1 << 16)
