"""Measures how long the machine has kept a test's event loop from running."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

TICK: Final = 0.02
SHORTEST: Final = 0.1
"""A shorter stall exceeds no deadline of a test, in seconds."""


@dataclass(slots=True)
class Stalls:
    """The stalls of an event loop."""

    longest: float = 0.0

    @property
    def matter(self) -> bool:
        """Whether a deadline may have passed because of a stall alone."""
        return self.longest >= SHORTEST


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[Stalls]:
    """Measure the stalls while the block runs."""
    stalls = Stalls()

    async def tick() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(TICK)
            stalls.longest = max(stalls.longest, time.monotonic() - began - TICK)

    task = asyncio.create_task(tick())
    try:
        yield stalls
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
