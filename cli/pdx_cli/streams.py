"""The standard streams: those that were closed before the start (`pdx status >&-`), and sentences on stderr."""

import codecs
import contextlib
import io
import os
import sys
from typing import IO, Final

from pdx_api.user_info import without_user_info

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127) if chr(code) not in "\t\n"}

_PLAIN: Final = {"→": "->", "…": ".", "µ": "u", "✗": "x", "·": "-", "↑": "^", "↓": "v"}
"""What is written in place of a character that stdout cannot write."""


def replace_unwritable() -> None:
    """Let stdout write other text in place of what its encoding lacks, instead of an error.

    That is for people. Data for machines must stay complete: `pdx_cli.inputs.formats` escapes it.
    """
    codecs.register_error("pdx", _plain)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="pdx")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Return what is written in place of a character, and where the text goes on."""
    assert isinstance(error, UnicodeEncodeError), "only text is written"
    return _PLAIN.get(error.object[error.start], "?"), error.start + 1


def encoding() -> str:
    """Return the name of stdout's encoding."""
    return getattr(sys.stdout, "encoding", None) or "utf-8"


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
