"""TCP options of both sides, and what the kernel reports about a connection.

Linux only, like the gateway.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from typing import Final

_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Keep-alive probes: the first after 10 s without a byte, then one every 5 s."""
_INFO_BYTES: Final = 128
_BYTES_ACKED: Final = struct.Struct("=120xQ")
"""`tcpi_bytes_acked` in `struct tcp_info` (linux/tcp.h); the state is the first byte."""
_QUEUE: Final = struct.Struct("=i")
_LEFT: Final = frozenset({7, 8})
"""TCP_CLOSE and TCP_CLOSE_WAIT (net/tcp_states.h): the peer has reset the connection or sent its end-of-file."""

_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: closing then resets the connection."""


def cut(transport: asyncio.Transport) -> None:
    """Reset a connection: no peer takes that for the end of an answer, and no port stays in TIME_WAIT."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


def detect_lost_peer(sock: socket.socket | None, seconds: float) -> None:
    """Let the kernel end the connection when the peer acknowledges nothing for `seconds`, data or keep-alive probe.

    TCP_USER_TIMEOUT replaces the number of lost probes (tcp(7)), so `seconds` is the limit of both. It also ends the
    connection of a peer that lives and accepts no byte for that long. None: a transport without a socket.
    """
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def unacknowledged(sock: socket.socket) -> int:
    """Bytes in the kernel's send queue that the peer has not acknowledged; raises OSError."""
    return int(_QUEUE.unpack(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(_QUEUE.size)))[0])


def has_unread_bytes(sock: socket.socket | None) -> bool:
    """Whether received bytes wait in the kernel, which resets a connection that is closed with some; raises OSError.

    None: a transport without a socket.
    """
    if sock is None:
        return False
    return int(_QUEUE.unpack(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(_QUEUE.size)))[0]) > 0


def peer_state(sock: socket.socket) -> tuple[bool, int]:
    """Whether the peer has closed its side, and how many bytes it has acknowledged so far; raises OSError."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return info[0] in _LEFT, int(_BYTES_ACKED.unpack_from(info)[0])
