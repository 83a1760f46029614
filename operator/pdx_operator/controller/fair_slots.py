"""Slots for reconciles, shared between namespaces: the objects of one tenant do not wait for all those of another."""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

_RECENT_SECONDS: Final = 2.0
"""How long a namespace counts as active after a reconcile: an object that becomes Ready has several, with pauses."""


class FairSlots:
    """Owner of a number of slots. Namespaces that wait take turns.

    A namespace holds at most an eighth of the slots, and at most a sixteenth while another one is active: each
    reconcile takes time of the one loop and of the API server, which the others need too. `clock` is monotonic, in
    seconds.
    """

    def __init__(self, slots: int, clock: Callable[[], float]) -> None:
        self._free = slots
        self._most_alone, self._most_beside = max(1, slots // 8), max(1, slots // 16)
        self._clock = clock
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._active: dict[str, float] = {}
        """When each namespace has last asked for a slot or given one back."""
        self._grants = itertools.count(1)
        self._last: dict[str, int] = {}
        """The number of the last grant of each namespace that holds a slot or waits."""

    @asynccontextmanager
    async def slot(self, namespace: str) -> AsyncIterator[None]:
        """Hold a slot inside a `with` block, which waits for it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(turn)
        self._note(namespace)
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
        self._note(namespace)
        self._grant()
        if not self._held[namespace] and namespace not in self._waiting:
            del self._last[namespace]

    def _note(self, namespace: str) -> None:
        """Note that a namespace is active, and forget those that are not any more."""
        self._active[namespace] = now = self._clock()
        for name, since in list(self._active.items()):
            if now - since >= _RECENT_SECONDS and not self._held[name] and name not in self._waiting:
                del self._active[name]

    def _grant(self) -> None:
        """Give free slots to those who wait, one for each namespace in turn."""
        most = self._most_alone if len(self._active) < 2 else self._most_beside
        while self._free:
            entitled = [name for name in self._waiting if self._held[name] < most]
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
