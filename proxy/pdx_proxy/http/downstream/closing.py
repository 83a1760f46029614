"""Closes a listening socket without a reset of any of its connections."""

import contextlib
import ctypes
import select
import socket
import struct
from typing import Final

_SO_ATTACH_FILTER: Final = 26
_ACCEPT_ALL: Final = 0xFFFFFFFF
_NO_SYN: Final = (
    (0x30, 0, 0, 13),  # load the flags of the TCP header
    (0x54, 0, 0, 0x02),  # keep SYN
    (0x15, 0, 1, 0),  # if it is not set
    (0x06, 0, 0, _ACCEPT_ALL),  # accept the packet,
    (0x06, 0, 0, 0),  # else drop it
)
"""A program of the classic BPF: code, jump if true, jump if false, operand."""


def refuse_handshakes(sock: socket.socket) -> None:
    """Let no further handshake begin on a listening socket. Those that have begun are completed.

    The kernel drops SYN packets for the socket, and a client sends its SYN again after a second. By then the socket is
    closed: another socket of the port gets the SYN, or the kernel refuses it. A kernel without such filters goes on
    accepting.
    """
    program = b"".join(struct.pack("HBBI", *step) for step in _NO_SYN)
    buffer = ctypes.create_string_buffer(program)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_NO_SYN), ctypes.addressof(buffer)))


def has_backlog(sock: socket.socket) -> bool:
    """Whether a connection waits to be accepted."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
