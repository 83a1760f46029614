"""Slots for reconciles, shared between namespaces: the objects of one tenant do not wait for all those of another."""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

_RECENT_SECONDS: Final = 2.0
"""How long a namespace counts as active after a reconcile: an object that becomes Ready has several, with pauses."""
CREDIT_SECONDS: Final = 5.0
"""How long a namespace may hold slots until its share counts: some hundred reconciles take as long."""
_MOST_DEBT_SECONDS: Final = 1.0
"""More than its credit is not held against a namespace: with a share of 0.1 slots, it waits 10 s at most."""
_LOOK_SECONDS: Final = 0.1
"""Between two looks at the namespaces that wait only because they have used up their share."""


class FairSlots:
    """Owner of a number of slots. Namespaces that wait take turns.

    Each reconcile takes time of the one loop and of the API server, which the others need too. So a namespace holds at
    most an eighth of the slots, and at most a sixteenth while another one is active. One that has held slots for
    `CREDIT_SECONDS` more than its share of the time is out of credit: it gets none while one with credit is active,
    for as long as its share needs to make up for `_MOST_DEBT_SECONDS` at most.
    """

    def __init__(self, slots: int, clock: Callable[[], float], share: float = 1.0) -> None:
        """`share`: slots that a namespace may hold on average without losing credit. `clock`: monotonic, in seconds."""
        self._free = slots
        self._share = share
        self._most_alone, self._most_beside = max(1, slots // 8), max(1, slots // 16)
        self._clock = clock
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._active: dict[str, float] = {}
        """When each namespace has last asked for a slot or given one back."""
        self._used: dict[str, float] = {}
        """The seconds for which each namespace has held slots, less its share of the time."""
        self._used_at = clock()
        self._timer: asyncio.TimerHandle | None = None
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
        began = self._clock()
        try:
            yield
        finally:
            used = self._used.get(namespace, 0.0) + self._clock() - began
            self._used[namespace] = min(used, CREDIT_SECONDS + _MOST_DEBT_SECONDS)
            self._release(namespace)

    def _release(self, namespace: str) -> None:
        self._free += 1
        self._held -= Counter((namespace,))
        self._note(namespace)
        self._grant()
        if not self._held[namespace] and namespace not in self._waiting:
            del self._last[namespace]

    def _note(self, namespace: str) -> None:
        """Note that a namespace is active."""
        self._active[namespace] = self._clock()

    def _forget(self) -> None:
        """Forget the namespaces that are not active any more, and subtract the shares from what was used."""
        now = self._clock()
        allowed, self._used_at = self._share * (now - self._used_at), now
        self._used = {name: left for name, used in self._used.items() if (left := used - allowed) > 0}
        for name, since in list(self._active.items()):
            if now - since >= _RECENT_SECONDS and not self._held[name] and name not in self._waiting:
                del self._active[name]

    def _has_credit(self, namespace: str) -> bool:
        return self._used.get(namespace, 0.0) <= CREDIT_SECONDS

    def _grant(self) -> None:
        """Give free slots to those who wait, one for each namespace in turn."""
        self._forget()
        most = self._most_alone if len(self._active) < 2 else self._most_beside
        modest = any(map(self._has_credit, self._active))
        while self._free:
            below = [name for name in self._waiting if self._held[name] < most]
            entitled = [name for name in below if self._has_credit(name) or not modest]
            if not entitled:
                if below and self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look_again)
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

    def _look_again(self) -> None:
        self._timer = None
        self._grant()
