"""The processes of one `pdx up`: started in groups of their own, and all ended whatever happens.

Invariant: from the moment a child runs, its group is known to the keeper, and it is taken back only when the group has
no member left. So no process outlives `pdx up`, by whatever way that ends.

The groups share the session of `pdx up`. A session of its own would put each engine into a scheduler autogroup, in
which vLLM's idle loops (sched_yield) starve its other threads: measured on Linux 6.18, engines stand still for minutes.
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
from pdx_cli.local import reaper
from pdx_cli.local.logs import tail

Result = TypeVar("Result")

KEEPER: Final = (sys.executable, "-I", "-S", reaper.__file__)

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
"""Before a child is started again: twice as long each time, up to this."""
LAST_LINES: Final = 15
"""Lines of a dead process's log that are shown."""


@dataclass(frozen=True, slots=True)
class Child:
    """One started process, leader of its own group."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        """Its process id, which is its group's too."""
        return self.process.pid

    def death(self) -> CommandError:
        """What to tell the user of a child that has exited."""
        last = tail(self.log, LAST_LINES)
        shown = f"{self.log} ends with:" if last else f"{self.log} is empty."
        return CommandError(f"{self.name} {_ending(self.process.returncode)}; {shown}", last)


class Fleet:
    """Owns every child of one run. `stop` and `close` are called once, in this order."""

    def __init__(self, grace_seconds: float = reaper.GRACE_SECONDS) -> None:
        self._grace_seconds = grace_seconds
        self.children: list[Child] = []
        self.again: dict[str, Callable[[], Awaitable[Child]]] = {}
        """Children whose death is survived, by name: what starts each anew."""
        self._deaths: Counter[str] = Counter()
        reading, self._pipe = os.pipe()
        self._keeper = subprocess.Popen(
            KEEPER,
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reading)

    async def start(self, name: str, argv: tuple[str, ...], env: Mapping[str, str], log: Path) -> Child:
        """Start one child; its output goes to the log, which begins anew unless this is a child started again."""
        with log.open("ab" if name in self.again else "wb") as output:
            process = await asyncio.create_subprocess_exec(
                *KEEPER,
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
        """Do the work while every child lives; raises CommandError for the first that exits.

        Children of `again` are started anew meanwhile.
        """
        task = asyncio.ensure_future(work)
        vital = [child for child in self.children if child.name not in self.again]
        exits = {asyncio.ensure_future(child.process.wait()): child for child in vital}
        kept = [asyncio.ensure_future(self._keep(child)) for child in self.children if child.name in self.again]
        try:
            done, _ = await asyncio.wait([task, *exits, *kept], return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            for failed in done.intersection(kept):
                failed.result()
            raise next(child for exit_, child in exits.items() if exit_ in done).death()
        finally:
            await _cancel(task, *exits, *kept)

    async def _keep(self, child: Child) -> NoReturn:
        while True:
            await child.process.wait()
            pause = min(FIRST_PAUSE_SECONDS * 2 ** self._deaths[child.name], LONGEST_PAUSE_SECONDS)
            told = f"{child.name} {_ending(child.process.returncode)}; it is started again in {pause:g} s ({child.log})"
            print(told, file=sys.stderr, flush=True)
            await asyncio.sleep(pause)
            # What the dead one has left behind may hold its ports.
            while self._lives(child.pid):
                reaper.signal_group(child.pid, signal.SIGKILL)
                await asyncio.sleep(0.05)
            self._deaths[child.name] += 1
            child = await self.again[child.name]()

    async def stop(self) -> None:
        """SIGTERM to every group at once, SIGKILL after the grace, until no group has a member."""
        groups = [child.pid for child in self.children]
        for group in groups:
            reaper.signal_group(group, signal.SIGTERM)
        clock = asyncio.get_running_loop()
        deadline = clock.time() + self._grace_seconds
        while groups := [group for group in groups if self._lives(group)]:
            if clock.time() >= deadline:
                self.kill()
            await asyncio.sleep(0.05)
        for child in self.children:
            await child.process.wait()
        self.children.clear()

    def kill(self) -> None:
        """SIGKILL to every group, now."""
        for child in self.children:
            reaper.signal_group(child.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let the keeper go; it ends what `stop` has not."""
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = -1
        self._keeper.wait()

    def _lives(self, group: int) -> bool:
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
    assert code is not None, "only a child that has exited has an ending"
    return f"exited with code {code}" if code >= 0 else f"was killed by signal {-code} ({signal.Signals(-code).name})"
