"""Slots for reconciles, shared between namespaces: the objects of one tenant do not wait for all those of another."""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from pdx_operator.controller.credit import Credit

_LOOK_SECONDS: Final = 0.1
"""Between two looks at the namespaces that wait only because they are out of credit."""
_LONGEST_SECONDS: Final = 10.0
"""After waiting for credit for so long, a namespace gets one slot without it."""


class FairSlots:
    """Owner of a number of slots. Namespaces that wait take turns.

    Each reconcile takes time of the one loop and of the API server, which the others need too. So a namespace holds at
    most an eighth of the slots, and at most a sixteenth while another one is active. A namespace that is out of credit
    gets none while one with credit is active, for 10 s at most. Several `FairSlots` share one `Credit`.
    """

    def __init__(self, slots: int, credit: Credit, clock: Callable[[], float], work: float = 1.0) -> None:
        """`work`: how many seconds of work a second in a slot counts as. `clock`: monotonic, in seconds."""
        self._free = slots
        self._most_alone, self._most_beside = max(1, slots // 8), max(1, slots // 16)
        self._credit = credit
        self._clock = clock
        self._work = work
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._grants = itertools.count(1)
        self._last: dict[str, int] = {}
        """The number of the last grant of each namespace that holds a slot or waits."""
        self._without_credit: dict[str, float] = {}
        """Since when namespaces wait only because they are out of credit."""

    @asynccontextmanager
    async def slot(self, namespace: str) -> AsyncIterator[None]:
        """Hold a slot inside a `with` block, which waits for it."""
        self._credit.enter(namespace)
        try:
            await self._wait(namespace)
            began = self._clock()
            try:
                yield
            finally:
                self._credit.use(namespace, self._work * (self._clock() - began))
                self._release(namespace)
        finally:
            self._credit.leave(namespace)
            self._grant()

    async def _wait(self, namespace: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(namespace)
            raise

    def _release(self, namespace: str) -> None:
        self._free += 1
        self._held -= Counter((namespace,))
        if not self._held[namespace] and namespace not in self._waiting:
            del self._last[namespace]

    def _grant(self) -> None:
        """Give free slots to those who wait, one for each namespace in turn."""
        credit = self._credit
        credit.update()
        active = credit.active()
        most = self._most_alone if len(active) < 2 else self._most_beside
        modest = any(map(credit.is_left, active))
        while self._free:
            below = [name for name in self._waiting if self._held[name] < most]
            entitled = [name for name in below if not modest or self._is_entitled(name)]
            if not entitled:
                if below and self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look_again)
                return
            self._grant_to(min(entitled, key=lambda name: self._last.get(name, 0)))

    def _is_entitled(self, namespace: str) -> bool:
        """Whether a namespace may get a slot while one with credit is active."""
        now = self._clock()
        return self._credit.is_left(namespace) or (
            now - self._without_credit.setdefault(namespace, now) >= _LONGEST_SECONDS
        )

    def _grant_to(self, namespace: str) -> None:
        """Give a slot to the first who waits in a namespace, unless its wait has been cancelled."""
        self._without_credit.pop(namespace, None)
        turn = self._waiting[namespace].popleft()
        if not self._waiting[namespace]:
            del self._waiting[namespace]
        if not turn.cancelled():
            self._free -= 1
            self._held[namespace] += 1
            self._last[namespace] = next(self._grants)
            turn.set_result(None)
        elif not self._held[namespace] and namespace not in self._waiting:
            self._last.pop(namespace, None)

    def _look_again(self) -> None:
        self._timer = None
        self._grant()
