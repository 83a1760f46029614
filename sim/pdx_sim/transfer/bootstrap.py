"""Mooncake's bootstrap: where a P tells, over HTTP, who it is and where its worker listens."""

from typing import Any

import aiohttp
from aiohttp import web

_SECONDS = aiohttp.ClientTimeout(total=3)


class BootstrapError(Exception):
    """A bootstrap does not answer, or not about the engine asked for."""


class Bootstrap:
    """One start of a P; it serves on a port of its own."""

    def __init__(self, engine_id: str, worker: str) -> None:
        self._entry = {"engine_id": engine_id, "worker_addr": {"0": {"0": worker}}}
        self._runner: web.AppRunner | None = None

    async def listen(self, host: str, port: int) -> int:
        """Serve; says the port."""
        app = web.Application()
        app.router.add_get("/query", self._query)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Serve no more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _query(self, _request: web.Request) -> web.Response:
        return web.json_response({"0": self._entry})


async def find_worker(bootstrap: str, engine_id: str) -> tuple[str, int]:
    """Host and port of the worker of an engine; raises BootstrapError."""
    try:
        async with aiohttp.ClientSession(timeout=_SECONDS) as session, session.get(f"{bootstrap}/query") as answer:
            registered: dict[str, Any] = await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise BootstrapError(f"{bootstrap}: {error!r}") from error
    for entry in registered.values():
        if entry["engine_id"] == engine_id:
            host, _, port = entry["worker_addr"]["0"]["0"].removeprefix("tcp://").rpartition(":")
            return host, int(port)
    raise BootstrapError(f"{bootstrap} knows no engine {engine_id}")
