"""The processes of one `pdx up`. Each runs in its own process group, and all end with `pdx up`.

Invariant: the group of every running child is registered with the reaper, and is removed only when the group has no
member left. So no process outlives `pdx up`, however it ends.

The groups share the session of `pdx up`. A separate session would put each engine into its own scheduler autogroup, in
which vLLM's idle loops (sched_yield) starve its other threads: on Linux 6.18, engines then stall for minutes.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from pdx_cli.errors import CommandError
from pdx_cli.runs import reaper
from pdx_cli.runs.logs import tail

Result = TypeVar("Result")

REAPER: Final = (sys.executable, "-I", "-S", reaper.__file__)

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
"""The pause before a restart doubles each time, up to this."""
LAST_LINES: Final = 15
"""Lines that are printed from the log of an ended process."""


@dataclass(frozen=True, slots=True)
class Child:
    """One started process, the leader of its own group."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        """Its process id, which is also its group's."""
        return self.process.pid

    def death(self) -> CommandError:
        """Return the error for the user, after the child has exited."""
        last = tail(self.log, LAST_LINES)
        shown = f"{self.log} ends with:" if last else f"{self.log} is empty."
        killed = self.process.returncode == -signal.SIGKILL
        hint = " (if nobody killed it, the kernel may have run out of memory: see dmesg)" if killed else ""
        return CommandError(f"{self.name} {_ending(self.process.returncode)}{hint}; {shown}", last)


class Processes:
    """Owns every child of one run. Call `stop`, then `close`, once each."""

    def __init__(self, reaper_log: Path | None = None, grace_seconds: float = reaper.GRACE_SECONDS) -> None:
        self._grace_seconds = grace_seconds
        self.children: list[Child] = []
        self.restarts: dict[str, Callable[[], Awaitable[Child]]] = {}
        """Name of a child that is restarted when it exits -> the function that starts it."""
        self._exits: Counter[str] = Counter()
        with (reaper_log or Path(os.devnull)).open("wb") as output:
            reading, self._pipe = os.pipe()
            self._reaper = subprocess.Popen(REAPER, stdin=reading, stdout=output, stderr=output, start_new_session=True)
        os.close(reading)

    async def start(self, name: str, argv: tuple[str, ...], env: Mapping[str, str], log: Path) -> Child:
        """Start one child with its output in the log. The log is truncated, unless the child may be restarted."""
        with log.open("ab" if name in self.restarts else "wb") as output:
            process = await asyncio.create_subprocess_exec(
                *REAPER,
                str(self._pipe),
                *argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(env),
                process_group=0,
                pass_fds=(self._pipe,),
            )
        child = Child(name, process, log)
        self.children = [*(other for other in self.children if other.name != name), child]
        return child

    async def guard(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do the work while every child runs; raises CommandError for the first that exits.

        A child in `restarts` is started again instead.
        """
        task = asyncio.ensure_future(work)
        vital = [child for child in self.children if child.name not in self.restarts]
        exits = {asyncio.ensure_future(child.process.wait()): child for child in vital}
        restarted = [child for child in self.children if child.name in self.restarts]
        supervised = [asyncio.ensure_future(self._supervise(child)) for child in restarted]
        try:
            done, _ = await asyncio.wait([task, *exits, *supervised], return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            for failed in done.intersection(supervised):
                failed.result()
            raise next(child for exit_, child in exits.items() if exit_ in done).death()
        finally:
            await _cancel(task, *exits, *supervised)

    async def _supervise(self, child: Child) -> NoReturn:
        """Restart a child each time it exits."""
        while True:
            await child.process.wait()
            pause = min(FIRST_PAUSE_SECONDS * 2 ** self._exits[child.name], LONGEST_PAUSE_SECONDS)
            ending = _ending(child.process.returncode)
            print(f"{child.name} {ending}; restarting it in {pause:g} s ({child.log})", file=sys.stderr, flush=True)
            await asyncio.sleep(pause)
            # Other processes of its group may still use its ports.
            while self._is_running(child.pid):
                reaper.signal_group(child.pid, signal.SIGKILL)
                await asyncio.sleep(0.05)
            self._exits[child.name] += 1
            child = await self.restarts[child.name]()

    async def stop(self) -> None:
        """Send SIGTERM to every group, SIGKILL after the grace period, and wait until no group has a member."""
        groups = [child.pid for child in self.children]
        for group in groups:
            reaper.signal_group(group, signal.SIGTERM)
        clock = asyncio.get_running_loop()
        deadline = clock.time() + self._grace_seconds
        while groups := [group for group in groups if self._is_running(group)]:
            if clock.time() >= deadline:
                self.kill()
            await asyncio.sleep(0.05)
        for child in self.children:
            await child.process.wait()
        self.children.clear()

    def kill(self) -> None:
        """Send SIGKILL to every group."""
        for child in self.children:
            reaper.signal_group(child.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the reaper; it first ends the groups that still run."""
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = -1
        self._reaper.wait()

    def _is_running(self, group: int) -> bool:
        """Whether the group has a member; if not, remove it from the reaper."""
        if reaper.has_members(group):
            return True
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, b"-%d\n" % group)
        return False


async def _cancel(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _ending(code: int | None) -> str:
    assert code is not None, "the child has exited"
    return f"exited with code {code}" if code >= 0 else f"was killed by signal {-code} ({signal.Signals(-code).name})"
