"""An event loop in which no time passes: when nothing is ready, its clock jumps to the next timer."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, which starts at 0."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__()

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if not self._ready:  # type: ignore[attr-defined]
            due = (timer.when() for timer in timers if not timer.cancelled())
            self._now = max(self._now, min(due, default=self._now))
        super()._run_once()  # type: ignore[misc]


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
