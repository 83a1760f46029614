"""A simulated engine as a process of its own, which a test can stop (SIGSTOP) and continue."""

import asyncio
import pickle
import signal
import sys
from typing import Self

import aiohttp

from pdx_sim import SimSettings

_CODE = "import pickle, sys; from pdx_sim.main import run; sys.exit(run(pickle.loads(bytes.fromhex(sys.argv[1]))))"


class EngineProcess:
    """`async with EngineProcess(settings) as engine`. The settings name the ports."""

    def __init__(self, settings: SimSettings) -> None:
        self.settings = settings
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Base URL of the HTTP API."""
        return f"http://{self.settings.host}:{self.settings.port}"

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _CODE, pickle.dumps(self.settings).hex()
        )
        async with aiohttp.ClientSession() as session:
            while not await _answers(session, f"{self.url}/health"):
                assert self._process.returncode is None
                await asyncio.sleep(0.05)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    def stop(self) -> None:
        """Stop the process: its sockets stay open, the kernel accepts connections, and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=5)) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
