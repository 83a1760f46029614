"""The standard streams: those that were closed before the start (`pdx status >&-`), and sentences on stderr."""

import contextlib
import os
import sys
from typing import IO, Final

from pdx_api.user_info import without_user_info

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127) if chr(code) not in "\t\n"}


def open_closed() -> None:
    """Put a stream in place of each closed one, for which Python has None.

    To use stdin or stdout fails with EBADF, and stderr is discarded. Each stream takes the lowest free descriptor, so
    no file or socket that is opened later gets the number of one.
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


def report(*lines: str) -> None:
    """Print on stderr, unless its disk is full or its reader has closed it: the exit code still shows a failure.

    Control characters, for example of a quoted key, must not reach the terminal, nor passwords of URLs its log.
    """
    for line in lines:
        with contextlib.suppress(OSError):
            print(without_user_info(line).translate(_CONTROLS), file=sys.stderr, flush=True)
