"""Programs that a test starts. A mark in their environment finds them and all that they start."""

import os
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

SECONDS: Final = 120.0
"""Limit for a condition on a loaded machine."""
TEST_SECONDS: Final = 3 * SECONDS
"""Limit for a test of several such conditions."""

_VARIABLE: Final = "PDX_TEST_RUN"


class Mark:
    """Marks the processes of one program."""

    def __init__(self) -> None:
        self._value = uuid.uuid4().hex

    @property
    def env(self) -> dict[str, str]:
        """This process's environment with the mark."""
        return {**os.environ, _VARIABLE: self._value}

    @property
    def only(self) -> dict[str, str]:
        """The mark alone."""
        return {_VARIABLE: self._value}

    def pids(self) -> set[int]:
        """Every marked process that is no zombie."""
        return {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if self._is_on(path)}

    def end(self) -> None:
        """Kill every marked process."""
        while pids := self.pids():
            for pid in pids:
                with suppress(ProcessLookupError):  # it may just have ended
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def _is_on(self, path: Path) -> bool:
        try:
            return f"{_VARIABLE}={self._value}".encode() in path.read_bytes().split(b"\0")
        except OSError:
            return False


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition holds within the limit."""
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()
