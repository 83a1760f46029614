"""The keeper: ends the process groups of a `pdx up` that was itself killed.

It runs as a process of its own, `python -I -S keeper.py`, and holds the reading end of a pipe on stdin. Lines `+GROUP`
and `-GROUP` say which groups live. When the pipe closes, whoever held its other end is gone, and so must be the groups.

A child is started as `python -I -S keeper.py FD ARGV…`: it names its own group on the pipe and becomes its program. So
there is no moment in which a child runs and the keeper cannot learn of it.
"""

import os
import signal
import sys
import time
from pathlib import Path

GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""


def has_members(group: int) -> bool:
    """Whether a process of the group still runs; a zombie, which waits for its parent only, does not."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return any(_runs_in(group, entry) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _runs_in(group: int, process: Path) -> bool:
    try:
        # The command's name, in brackets, may hold anything: the fields after its end are state, parent, group.
        state, _, its_group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(its_group) == group and state not in "ZX"


def signal_group(group: int, number: int) -> None:
    """Signal every member of a group that may have none."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def end(groups: set[int]) -> None:
    """SIGTERM to all at once, then SIGKILL to what is left after the grace."""
    for group in groups:
        signal_group(group, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while any(has_members(group) for group in groups) and time.monotonic() < deadline:
        time.sleep(0.05)
    for group in groups:
        if has_members(group):
            signal_group(group, signal.SIGKILL)


def announce(pipe: int, argv: list[str]) -> None:
    """Name the own group, which this process leads, and become the program."""
    os.write(pipe, b"+%d\n" % os.getpid())
    os.set_inheritable(pipe, False)
    try:
        os.execvp(argv[0], argv)  # noqa: S606
    except OSError as error:
        sys.exit(f"{argv[0]} cannot be started: {error.strerror}")


def main() -> None:
    """Read the pipe to its end, then end what it named."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        groups = groups | {group} if line.startswith("+") else groups - {group}
    end(groups)


if __name__ == "__main__":
    announce(int(sys.argv[1]), sys.argv[2:]) if len(sys.argv) > 1 else main()
