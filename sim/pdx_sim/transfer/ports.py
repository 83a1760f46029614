"""Ports for engines that keep their port while they are down."""

import asyncio
import errno
import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Final

_PORTS: Final = range(20_000, 30_000)
"""Below the ports that Linux gives to outgoing connections: one of them could take a port while its engine is down."""
_next = itertools.count(os.getpid() * 37)


async def listen_steadily(listen: Callable[[int], Awaitable[asyncio.Server]], port: int) -> asyncio.Server:
    """Listen on `port`; for 0 on a free port that this engine keeps while it is down. Raises OSError."""
    if port:
        return await listen(port)
    for _ in _PORTS:
        try:
            return await listen(_PORTS[next(_next) % len(_PORTS)])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, "no free port")
