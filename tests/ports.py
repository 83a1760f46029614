"""Free ports for programs that bind them some seconds later."""

import socket
from collections.abc import Iterator
from typing import Final

from pdx_cli.local.ports import HOST, is_free

_PORTS: Final = range(61_000, 65_000)
"""Above the ports of outgoing connections, one of which could take a port before its program binds it."""
_BLOCK: Final = 100
"""Ports of one process. No other process of a test run is given one of them."""


def free_port(count: int = 1) -> int:
    """The first of `count` free loopback ports in a row, which nothing else is given.

    Two vLLM engines on one port would share it silently.
    """
    while True:
        ports = [next(_free_ports) for _ in range(count)]
        if ports[-1] - ports[0] == count - 1:
            return ports[0]


def _ports() -> Iterator[int]:
    for first in _PORTS[::_BLOCK]:
        claim = socket.socket()
        try:
            claim.bind((HOST, first))
        except OSError:
            claim.close()
            continue
        claim.detach()  # the kernel closes it when the process ends
        yield from filter(is_free, range(first + 1, first + _BLOCK))
    raise OSError("no free port for a test")


_free_ports: Final = _ports()
