"""A gateway process: sends it its engines, reads its state, measures it through /proc."""

import asyncio
import http.client
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.soak.gateway import TASKS, packed
from pdx_cli.local.ports import allocate
from pdx_proxy.config.settings import Address, EndpointSpec, Settings

ROOT: Final = Path(__file__).parents[2]
_HOST: Final = "127.0.0.1"
_STARTS_WITHIN: Final = 30.0
"""Seconds."""


def free_port() -> int:
    """A free port that no outgoing connection takes."""
    return allocate(1)[0]


class GatewayProcess:
    """Owner of one gateway and its log."""

    def __init__(self, settings: Settings, log: Path, env: Mapping[str, str] | None = None) -> None:
        """`env` has further variables of its environment, and of its workers'."""
        self.listen, self.admin = Address(_HOST, free_port()), Address(_HOST, free_port())
        self._settings = replace(settings, listen=self.listen, admin=self.admin)
        self._log = log
        self._env = {**os.environ, **(env or {})}
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.soak.gateway", packed(self._settings)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=self._env,
            )
        try:
            assert b"serving on" in await self._line(), self.log
        except BaseException:
            await self.__aexit__()  # without the context, nothing would end it
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._child.returncode is None:
            self._child.kill()
            await self._child.wait()

    @property
    def log(self) -> str:
        """Its standard error so far."""
        return self._log.read_text()

    def set_engines(self, specs: Iterable[EndpointSpec]) -> None:
        """Set the engines."""
        self._write(list(specs))

    async def tasks(self) -> int:
        """How many tasks run in it, its workers excluded."""
        self._write(TASKS)
        return int(await self._line())

    async def state(self) -> dict[str, Any]:
        """Its /pdx/state."""
        return await asyncio.to_thread(self._state)

    def pids(self) -> list[int]:
        """It and its workers."""
        pid = self._child.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]

    def memory(self) -> int:
        """Resident bytes of all its processes."""
        found = [re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()) for pid in self.pids()]
        return sum(int(each[1]) * 1024 for each in found if each)

    def files(self) -> int:
        """Open file descriptors of all its processes."""
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids())

    async def end(self) -> int:
        """End it; returns its exit code."""
        self._child.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._child.wait(), self._settings.shutdown_seconds + 10.0)
        return self._child.returncode if self._child.returncode is not None else -1

    @property
    def _child(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    async def _line(self) -> bytes:
        assert self._child.stdout is not None
        return await asyncio.wait_for(self._child.stdout.readline(), _STARTS_WITHIN)

    def _write(self, message: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(packed(message) + b"\n")

    def _state(self) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self.admin.host, self.admin.port, timeout=10)
        try:
            connection.request("GET", "/pdx/state")
            return dict(json.loads(connection.getresponse().read()))
        finally:
            connection.close()
