"""Mooncake's bootstrap: P reports over HTTP its engine id and the address of its worker."""

from typing import Any, Final

import aiohttp
from aiohttp import web

_TIMEOUT: Final = aiohttp.ClientTimeout(total=3)


class BootstrapError(Exception):
    """A bootstrap does not answer, or its answer does not contain the engine."""


class Bootstrap:
    """The bootstrap of one start of a P; it has its own port."""

    def __init__(self, engine_id: str, worker: str) -> None:
        self._entry = {"engine_id": engine_id, "worker_addr": {"0": {"0": worker}}}
        self._runner: web.AppRunner | None = None

    async def listen(self, host: str, port: int) -> int:
        """Start serving; return the port."""
        app = web.Application()
        app.router.add_get("/query", self._query)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _query(self, _request: web.Request) -> web.Response:
        return web.json_response({"0": self._entry})


async def find_worker(bootstrap: str, engine_id: str) -> tuple[str, int]:
    """Host and port of the worker of an engine; raises BootstrapError."""
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session, session.get(f"{bootstrap}/query") as answer:
            registered: dict[str, Any] = await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise BootstrapError(f"{bootstrap}: {error!r}") from error
    for entry in registered.values():
        if entry["engine_id"] == engine_id:
            host, _, port = entry["worker_addr"]["0"]["0"].removeprefix("tcp://").rpartition(":")
            return host, int(port)
    raise BootstrapError(f"{bootstrap} has no engine {engine_id}")
