"""What both servers do with a client's transport: its address, the time for a body, and cutting it."""

import asyncio
import socket
import struct
from typing import Final

_BODY_SECONDS: Final = 30.0
_SLOWEST_BYTES_PER_SECOND: Final = 16 * 1024
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: closing then resets the connection. In HTTP/1.0 a plain close ends an answer."""


def body_seconds(received: int) -> float:
    """How long a body may take of which `received` bytes have arrived: 30 s, and their time at 16 KiB/s."""
    return _BODY_SECONDS + received / _SLOWEST_BYTES_PER_SECOND


def peer_of(transport: asyncio.Transport | None) -> str:
    """A client's address, without its port."""
    peer = transport.get_extra_info("peername") if transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) else ""


def cut(transport: asyncio.Transport) -> None:
    """Close a client's connection in a way that no client takes for the end of an answer."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
