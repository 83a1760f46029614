"""Background tasks that end with their owner."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Tasks that run until they end or `close` cancels them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Run in the background; None, and no task, after `close`."""
        if self.closed:
            work.close()
            return None
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel and await all tasks."""
        self.closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
