"""The reaper: ends the process groups of a `pdx up` that was killed.

It runs as a separate process, `python -I -S reaper.py`, and reads a pipe on stdin. The lines `+GROUP` and `-GROUP` add
and remove a running group. When the pipe closes, `pdx up` has ended, and the reaper ends the groups that are left. It
first writes a line to stdout: the time of this line in the log is when `pdx up` was killed.

A child is started as `python -I -S reaper.py FD ARGV…`: it writes its own group to the pipe, then executes its program.
So every running child is registered with the reaper.
"""

import os
import signal
import sys
import time
from pathlib import Path

GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""


def has_members(group: int) -> bool:
    """Whether a process of the group still runs; a zombie does not count."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return any(_runs_in(group, entry) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _runs_in(group: int, process: Path) -> bool:
    try:
        # The command's name, in brackets, may contain anything; the fields after it are state, parent, group.
        state, _, process_group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(process_group) == group and state not in "ZX"


def signal_group(group: int, number: int) -> None:
    """Signal every member of a group, which may be empty."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def end(groups: set[int]) -> None:
    """Send SIGTERM to all groups, and SIGKILL to those that still run after the grace period."""
    for group in groups:
        signal_group(group, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while any(has_members(group) for group in groups) and time.monotonic() < deadline:
        time.sleep(0.05)
    for group in groups:
        if has_members(group):
            signal_group(group, signal.SIGKILL)


def announce(pipe: int, argv: list[str]) -> None:
    """Register this process's own group, then execute the program."""
    os.write(pipe, b"+%d\n" % os.getpid())
    os.set_inheritable(pipe, False)
    try:
        os.execvp(argv[0], argv)  # noqa: S606
    except OSError as error:
        sys.exit(f"{argv[0]} cannot be started: {error.strerror}")


def report(count: int) -> None:
    """Write when `pdx up` was killed, unless the disk is full: the groups have to end anyway."""
    try:
        print(f"`pdx up` ended before {count} of its process groups; ending them", flush=True)
    except OSError:
        return


def main() -> None:
    """Read the pipe to its end, then end the registered groups."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        groups = groups | {group} if line.startswith("+") else groups - {group}
    if groups:
        report(len(groups))
    end(groups)


if __name__ == "__main__":
    announce(int(sys.argv[1]), sys.argv[2:]) if len(sys.argv) > 1 else main()
