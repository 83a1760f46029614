"""Ports for engines that keep their port while they are down."""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Final

_PORTS: Final = range(20_000, 30_000)
"""Below the ports that Linux gives to outgoing connections: one of them could take a port while its engine is down."""
_BLOCK: Final = 100
"""Ports of one process. No other process uses them, so none takes the port of an engine that is down."""
_HOST: Final = "127.0.0.1"
_own: Final[deque[int]] = deque()
"""The ports of this process; the one that was used last is at the end."""


async def listen_steadily(listen: Callable[[int], Awaitable[asyncio.Server]], port: int) -> asyncio.Server:
    """Listen on `port`; for 0 on a free port that this engine keeps while it is down. Raises OSError."""
    if port:
        return await listen(port)
    for _ in _PORTS:
        for _ in range(len(_own)):
            _own.rotate(-1)
            try:
                return await listen(_own[-1])
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        if not _claim_block():
            break
    raise OSError(errno.EADDRINUSE, "no free port")


def _claim_block() -> bool:
    """Add a block of ports that no other process has claimed; False if there is none."""
    firsts = deque(_PORTS[::_BLOCK])
    firsts.rotate(-os.getpid())
    for first in firsts:
        with closing(socket.socket()) as claim:
            try:
                claim.bind((_HOST, first))
            except OSError:
                continue
            claim.detach()  # the kernel closes it when the process ends
        _own.extendleft(range(first + _BLOCK - 1, first, -1))
        return True
    return False
