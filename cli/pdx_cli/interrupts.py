"""Signals: an interrupt ends a command at once and without a traceback, unless the command has something to release.

SIGINT has its default disposition while a command has nothing to release, also during imports. A KeyboardInterrupt
could be raised anywhere instead: in an import's callback, or at exit, where Python prints it and goes on.
"""

import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

OnSignal = Callable[[signal.Signals], None]


@contextmanager
def handled(on_signal: OnSignal) -> Iterator[None]:
    """Call `on_signal` for each stop signal while the block runs, in the main thread; then restore the handlers."""

    def handle(number: int, _: FrameType | None) -> None:
        on_signal(signal.Signals(number))

    former = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or former[number] is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def end_by(number: signal.Signals) -> NoReturn:
    """End the process as the signal would, so that a shell sees what happened."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def run(
    work: Callable[[], Coroutine[Any, Any, Result]],
    loop_factory: "Callable[[], asyncio.AbstractEventLoop] | None" = None,
) -> Result | signal.Signals:
    """Do the work until it ends, and return its result; a signal cancels it, and the first one is returned."""
    import asyncio  # not for --help

    received: list[signal.Signals] = []
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        loop = runner.get_loop()
        task = loop.create_task(work())

        def stop(number: signal.Signals) -> None:
            received.append(number)
            loop.call_soon_threadsafe(task.cancel)

        async def result() -> Result:
            return await task

        with handled(stop):
            try:
                return runner.run(result())
            except asyncio.CancelledError:
                if not received:
                    raise
                return received[0]
