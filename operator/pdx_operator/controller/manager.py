"""All loops: started when an object appears, woken when something of it is new, gone with it."""

import asyncio
from collections.abc import Callable

from pdx_operator.controller.reconciler import Loop
from pdx_operator.kube.cache import Key


class Manager:
    """Owner of the loops."""

    def __init__(self, make: Callable[[Key], Loop]) -> None:
        self._make = make
        self._loops: dict[Key, tuple[Loop, asyncio.Task[None]]] = {}
        self._over = False

    def wake(self, key: Key, urgent: bool, *, exists: bool) -> None:
        """Something about an object is new."""
        entry = self._loops.get(key)
        if entry is not None and not entry[1].done():
            entry[0].wake(urgent=urgent)
        elif exists and not self._over:
            loop = self._make(key)
            task = asyncio.get_running_loop().create_task(loop.run(), name=f"loop of {key}")
            self._loops[key] = loop, task
            task.add_done_callback(lambda task: self._ended(key, task))

    async def stop(self) -> None:
        """End every loop where it stands: nothing that it was about to do is lost."""
        self._over = True
        tasks = [task for _, task in self._loops.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        if self._loops.get(key, (None, None))[1] is task:
            del self._loops[key]
