"""What both servers do with a client's transport: its address, its limits, and handing it over."""

import asyncio
from typing import Final

from pdx_proxy.http.tcp import cut, peer_state, unacknowledged

_BODY_SECONDS: Final = 30.0
_SLOWEST_BYTES_PER_SECOND: Final = 16 * 1024


def body_seconds(received: int) -> float:
    """How long a body may take of which `received` bytes have arrived: 30 s, and their time at 16 KiB/s."""
    return _BODY_SECONDS + received / _SLOWEST_BYTES_PER_SECOND


def peer_of(transport: asyncio.Transport | None) -> str:
    """A client's address, without its port."""
    peer = transport.get_extra_info("peername") if transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) else ""


def hand_over(transport: asyncio.Transport, protocol: asyncio.Protocol, data: bytes, write_paused: bool) -> None:
    """Give a client's connection to another protocol, with the bytes that have not been answered."""
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if write_paused:
        protocol.pause_writing()
    protocol.data_received(data)


class SendProgress:
    """How long a client has accepted no byte. Pure: the numbers and the time are arguments."""

    __slots__ = ("_accepted", "_since", "_waiting")

    def __init__(self) -> None:
        self._waiting = self._accepted = 0
        self._since = 0.0

    def stalled_seconds(self, waiting: int, accepted: int, now: float) -> float:
        """Seconds since the client accepted a byte, or since bytes began to wait; 0 while none wait.

        `waiting` bytes are written and not accepted. `accepted` grows with every byte that the client accepts.
        """
        if not waiting or not self._waiting or accepted != self._accepted or waiting < self._waiting:
            self._since = now
        self._waiting, self._accepted = waiting, accepted
        return now - self._since


def sweep_client(transport: asyncio.Transport, progress: SendProgress, now: float, send_seconds: float) -> bool:
    """Cut a client that has accepted no byte for `send_seconds`, or has left while the gateway does not read from it.

    Return whether bytes wait for a client that is not cut. Only an abort ends such a connection: `close` waits until
    the client has accepted every byte.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    try:
        waiting = transport.get_write_buffer_size() + unacknowledged(sock)
        closed, accepted = peer_state(sock)
    except OSError:  # the connection has just been lost
        return False
    left = closed and not transport.is_closing() and not transport.is_reading()
    if left or progress.stalled_seconds(waiting, accepted, now) >= send_seconds:
        cut(transport)
        return False
    return waiting > 0
