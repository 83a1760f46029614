"""A gateway whose memory, processes, pages and callbacks are watched from outside."""

import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.soak.program import GatewayProcess
from pdx_api.settings.gateway import Verification
from pdx_proxy.config.settings import Deadlines, Health, Retries, Settings

MAY_USE: Final = 150 << 20
"""Bytes that all processes of the gateway may use in addition to those when it was idle."""
CALLBACK_SECONDS: Final = 0.05
"""CPU time of a callback of an event loop."""
DEADLINES: Final = Deadlines(
    connect_seconds=1.0,
    prefill_seconds=2.0,
    handoff_seconds=2.0,
    first_event_seconds=2.5,
    idle_seconds=2.5,
    total_seconds=10.0,
    settle=2.0,
    nearly_done=0.1,
    warm_up=2.0,
    health_check=1.5,
)
SETTINGS: Final = Settings(
    deadlines=DEADLINES,
    retries=Retries(min_retries=100_000),
    health=Health(slow_start_seconds=0.0),
    verification=Verification(period_seconds=0),
    idle_seconds=0.5,
    shutdown_seconds=10.0,
    gone_seconds=3.0,
)
"""No request is refused for lack of a budget for retries, and a hostile engine gets its share soon."""
_MEASURED: Final = Path(__file__).parent / "measured"
_EVERY: Final = 0.25
_PATIENCE: Final = 5.0
"""Seconds for a page of the gateway, on a busy machine."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that must not happen, and when it did, by `time.time`."""

    at: float
    text: str


@dataclass
class Watch:
    """What was seen of one gateway."""

    gateway: GatewayProcess
    callbacks: Path
    settings: Settings
    idle: int = 0
    """Resident bytes before the attack."""
    peak: int = 0
    samples: list[tuple[float, int]] = field(default_factory=list)
    """Resident bytes over time, by `time.time`."""
    problems: list[Problem] = field(default_factory=list)
    late: float = 0.0
    """Seconds by which this process, which has the engines, was late at most."""
    key: str = ""
    """A client's key, for pages that need one."""
    _watching: asyncio.Task[None] | None = None

    def note(self, text: str) -> None:
        """Keep a problem."""
        self.problems.append(Problem(time.time(), text))

    def slow(self, since: float) -> list[dict[str, Any]]:
        """Callbacks that used too much CPU time since then."""
        if not self.callbacks.exists():
            return []
        lines = map(json.loads, self.callbacks.read_text().splitlines())
        return [line for line in lines if line["at"] - line["seconds"] >= since]

    def start(self) -> None:
        """Watch from now on."""
        self._watching = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Watch no more: a gateway that ends has no pages."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _run(self) -> None:
        pids = self.gateway.pids()
        at, began = 0, time.monotonic()
        while True:
            await asyncio.sleep(_EVERY)
            self.late = max(self.late, time.monotonic() - began - _EVERY)
            try:
                now, found = self.gateway.memory(), self.gateway.pids()
            except OSError as error:
                self.note(f"a process of the gateway has ended: {error}")
                await asyncio.sleep(1.0)
                continue
            if found != pids:
                self.note(f"the gateway's processes are {found}, and were {pids}")
                pids = found
            self.peak = max(self.peak, now)
            self.samples.append((time.time(), now))
            at += 1
            began = time.monotonic()
            if at % 2 == 0:
                await asyncio.gather(*(self._page(*each) for each in self._pages()))
                began = time.monotonic()

    def _pages(self) -> list[tuple[str, str]]:
        admin, serving = f"http://{self.gateway.admin}", f"http://{self.gateway.listen}"
        return [
            (admin, "/metrics"),
            (admin, "/pdx/state"),
            (admin, "/readyz"),
            (serving, "/health"),
            (serving, "/v1/models"),
        ]

    async def _page(self, base: str, path: str) -> None:
        """Every page is 200, in time, and of a bounded size."""
        began = time.monotonic()
        status, body = await asyncio.to_thread(_get, f"{base}{path}", self.key)
        if status != 200:
            self.note(f"{path}: {status} after {time.monotonic() - began:.1f} s: {body[:200]!r}")


def _get(url: str, key: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, ValueError) as error:
        return 0, str(error).encode()


@asynccontextmanager
async def watched(log: Path, **settings: Any) -> AsyncIterator[Watch]:
    """A gateway, with the CPU time of its callbacks measured."""
    callbacks = log.with_suffix(".callbacks")
    path = os.pathsep.join((str(_MEASURED), os.environ.get("PYTHONPATH", "")))
    env = {"PYTHONPATH": path, "PDX_CALLBACKS": str(callbacks), "PDX_CALLBACK_SECONDS": str(CALLBACK_SECONDS)}
    chosen = replace(SETTINGS, **settings)
    async with GatewayProcess(chosen, log, env) as gateway:
        yield Watch(gateway, callbacks, chosen)
