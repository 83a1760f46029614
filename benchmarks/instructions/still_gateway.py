"""`python -m benchmarks.instructions.still_gateway FLAGS`: `pdx gateway FLAGS`, whose polls of engines can be stopped.

A poll between two counts would be counted as a part of the requests. The gateway has no flag for this, so this program
replaces `asyncio.sleep`: after STOP, a sleep of the gateway's own modules does not end until GO arrives. In the counted
cases, only polls sleep for that long. The engines count the polls that they receive, so the harness notices if one
happens all the same. Idle connections of clients are never inspected, and those to engines never close: that does not
use `asyncio.sleep`.
"""

import asyncio
import signal
import sys
from collections.abc import Awaitable
from types import FrameType
from typing import Any, Final

from pdx_cli.entry import pdx
from pdx_proxy.config.settings import Settings
from pdx_proxy.http.downstream import listener

STOP: Final = signal.SIGUSR1
GO: Final = signal.SIGUSR2
_GATEWAY: Final = "pdx_proxy."
_LEAST_SECONDS: Final = 0.05
"""A shorter sleep is not a pause between two rounds of polls."""

_NEVER_SECONDS: Final = 1e6
_sleep: Final = asyncio.sleep


class Pauses:
    """The state of the polls."""

    def __init__(self) -> None:
        self.stopped = False
        self._sleepers: set[asyncio.Future[None]] = set()

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Stop the polls, or let them go on."""
        self.stopped = number == STOP
        if not self.stopped:
            for sleeper in self._sleepers:
                sleeper.get_loop().call_soon_threadsafe(sleeper.cancel)

    async def pause(self, seconds: float) -> None:
        """Sleep between two rounds."""
        await _sleep(seconds)
        while self.stopped:
            sleeper = asyncio.get_running_loop().create_future()
            self._sleepers.add(sleeper)
            await asyncio.wait([sleeper])
            self._sleepers.discard(sleeper)


def keep_connections() -> None:
    """Keep idle connections to engines: a stream is slow, so others would close in one run and open in the other."""
    create = Settings.__init__

    def kept(self: Settings, *arguments: Any, **more: Any) -> None:
        create(self, *arguments, **{"idle_seconds": _NEVER_SECONDS, **more})

    Settings.__init__ = kept  # type: ignore[method-assign]


def main() -> int:
    """Serve."""
    pauses = Pauses()
    keep_connections()

    def sleep(delay: float, result: Any = None) -> Awaitable[Any]:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        polls = caller.startswith(_GATEWAY) and delay >= _LEAST_SECONDS
        return pauses.pause(delay) if polls else _sleep(delay, result)

    asyncio.sleep = sleep  # type: ignore[assignment]
    listener._SWEEP_SECONDS = _NEVER_SECONDS  # type: ignore[misc]
    for number in (STOP, GO):
        signal.signal(number, pauses.on_signal)
    sys.argv[1:1] = ["gateway"]
    return pdx()


if __name__ == "__main__":
    sys.exit(main())
