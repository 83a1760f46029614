"""The signals that end the operator: SIGTERM and SIGINT set an event, whatever the operator does at that moment."""

import asyncio
import signal
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def listen(stop: asyncio.Event) -> None:
    """Set `stop` at a signal from now on, instead of what another handler would do."""
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
