"""Slots for reconciles, shared between namespaces: the objects of one tenant do not wait for all those of another."""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSlots:
    """Owner of a number of slots. Namespaces that wait take turns, and none holds more than three quarters."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._most = max(1, slots * 3 // 4)
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._grants = itertools.count(1)
        self._last: dict[str, int] = {}
        """The number of the last grant of each namespace that holds a slot or waits."""

    @asynccontextmanager
    async def slot(self, namespace: str) -> AsyncIterator[None]:
        """Hold a slot inside a `with` block, which waits for it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(namespace)
            raise
        try:
            yield
        finally:
            self._release(namespace)

    def _release(self, namespace: str) -> None:
        self._free += 1
        self._held -= Counter((namespace,))
        self._grant()
        if not self._held[namespace] and namespace not in self._waiting:
            del self._last[namespace]

    def _grant(self) -> None:
        """Give free slots to those who wait, one for each namespace in turn."""
        while self._free:
            entitled = [name for name in self._waiting if self._held[name] < self._most]
            if not entitled:
                return
            namespace = min(entitled, key=lambda name: self._last.get(name, 0))
            turn = self._waiting[namespace].popleft()
            if not self._waiting[namespace]:
                del self._waiting[namespace]
            if not turn.cancelled():
                self._free -= 1
                self._held[namespace] += 1
                self._last[namespace] = next(self._grants)
                turn.set_result(None)
