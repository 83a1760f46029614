"""Reads the ends of log files that other processes write."""

import re
from pathlib import Path
from typing import Final

TAIL_BYTES: Final = 16 * 1024
ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
"""Colours and other control characters; they would change the state of the terminal."""


def tail(log: Path, count: int) -> tuple[str, ...]:
    """Return the last non-blank lines without control characters; none if the file does not exist."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    # A progress bar overwrites its line with carriage returns; each version counts as a line.
    lines = (ESCAPES.sub("", line).rstrip() for line in text.replace("\r", "\n").split("\n"))
    return tuple(line for line in lines if line)[-count:]
