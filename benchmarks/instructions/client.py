"""A client that sends equal requests in a closed loop: each connection sends the next one after the answer."""

import re
import selectors
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

_SECONDS: Final = 600.0
"""Deadline of any progress. Callgrind makes a gateway fifty times slower, and the machine may be busy."""
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: (\d+)\r\n")
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"


class AnswerError(Exception):
    """The gateway did not answer a request with 200 and a whole body; the text has what came."""


class Client:
    """So many connections to a port of loopback. Use it as a context manager."""

    def __init__(self, port: int, connections: int) -> None:
        self._port = port
        self._connections = connections
        self._sockets: Sequence[socket.socket] = ()
        self._stack = ExitStack()

    def __enter__(self) -> "Client":
        """Connect."""
        opened = [socket.create_connection(("127.0.0.1", self._port), _SECONDS) for _ in range(self._connections)]
        self._sockets = [self._stack.enter_context(each) for each in opened]
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self._stack.close()

    def send(self, request: bytes, times: int) -> None:
        """Send a request so many times, a multiple of the connections, which share them. Raises AnswerError."""
        assert times % self._connections == 0 < times, "each connection sends equally many requests"
        missing = dict.fromkeys(self._sockets, times // self._connections)
        received = dict.fromkeys(self._sockets, b"")
        with selectors.DefaultSelector() as selector:
            for each in self._sockets:
                selector.register(each, selectors.EVENT_READ)
                each.sendall(request)
            while selector.get_map():
                for key, _ in selector.select(_SECONDS) or _time_out():
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    received[connection] += connection.recv(1 << 16) or _fail("a closed connection", b"")
                    if not is_complete(received[connection]):
                        continue
                    received[connection] = b""
                    missing[connection] -= 1
                    if missing[connection]:
                        connection.sendall(request)
                    else:
                        selector.unregister(connection)


def is_complete(answer: bytes) -> bool:
    """Whether these bytes are a whole answer; raises AnswerError if its status is not 200."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    if not head.startswith(b"HTTP/1.1 200 "):
        _fail("another status than 200", answer)
    length = _LENGTH.search(head + b"\r\n")
    return len(body) >= int(length[1]) if length else answer.endswith(_LAST_CHUNK)


def _fail(what: str, received: bytes) -> bytes:
    raise AnswerError(f"the gateway answered with {what}: {received[:300]!r}")


def _time_out() -> list[tuple[selectors.SelectorKey, int]]:
    raise AnswerError(f"the gateway sent nothing for {_SECONDS:g} s")
