"""Standard streams that were closed before the start (`pdx status >&-`), for which Python has None."""

import os
import sys
from typing import IO


def open_closed() -> None:
    """Put a stream in place of each closed one: to use stdin or stdout fails with EBADF, and stderr is discarded.

    Each stream takes the lowest free descriptor, so no file or socket that is opened later gets the number of one.
    """
    if sys.stdin is None:
        sys.stdin = _null(os.O_WRONLY, "r")
    if sys.stdout is None:
        sys.stdout = _null(os.O_RDONLY, "w")
    if sys.stderr is None:
        sys.stderr = _null(os.O_WRONLY, "w")


def _null(access: int, mode: str) -> IO[str]:
    descriptor = os.open(os.devnull, access)
    os.set_inheritable(descriptor, True)
    return open(descriptor, mode, encoding="utf-8")
