"""An event loop whose time passes only while nothing can be done, for programs that share one process with their peers.

What they compute takes no time, and a wait takes none of ours: the times that they measure are exactly those that the
simulated engines were set to, however busy the machine is.
"""

import asyncio
import selectors
import time
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar
from unittest.mock import patch

from pdx_proxy.balancing.load import Load

_BEGIN = 1000.0
_READS = 3
"""Reads of the state of sockets before time passes: the kernel may deliver it a moment after it was sent."""


class _Selector(selectors.DefaultSelector):
    """Passes virtual time instead of waiting."""

    now = _BEGIN

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        for _ in range(_READS):
            if (found := super().select(0)) or (timeout is not None and timeout <= 0):
                return found
        if timeout is None:
            return super().select(None)
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop."""

    def __init__(self) -> None:
        self.selector = _Selector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now


T = TypeVar("T")


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; the clocks of this process are the loop's."""
    loop = VirtualLoop()
    defaults: Mapping[str, Any] = {"monotonic": loop.time, "perf_counter": loop.time}
    with ExitStack() as stack:
        for name, clock in defaults.items():
            stack.enter_context(patch.object(time, name, clock))
        stack.enter_context(patch.object(Load.__init__, "__defaults__", (loop.time,)))
        return stack.enter_context(asyncio.Runner(loop_factory=lambda: loop)).run(work)
