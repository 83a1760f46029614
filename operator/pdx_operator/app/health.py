"""The HTTP endpoints of the operator: /healthz and /readyz for the kubelet, /metrics for Prometheus."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from pdx_operator.app.metrics import Metrics


class PortError(Exception):
    """The endpoints cannot listen; the text says on which port, and why."""


@asynccontextmanager
async def serving(
    port: int, is_alive: Callable[[], bool], is_ready: Callable[[], bool], metrics: Metrics
) -> AsyncIterator[None]:
    """Serve the endpoints inside a `with` block; with port 0 serve nothing. Raises PortError."""
    if not port:
        yield
        return

    async def live(_: web.Request) -> web.Response:
        if is_alive():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="a watch has been silent for too long\n")

    async def ready(_: web.Request) -> web.Response:
        if is_ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="the cache is not synchronized yet\n")

    async def metrics_page(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", live), web.get("/readyz", ready), web.get("/metrics", metrics_page)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await _listen(runner, port)
        yield
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, port: int) -> None:
    try:
        # The kubelet and Prometheus connect to the pod's address.
        await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise PortError(f"cannot listen on port {port}: {reason}; choose another port with --health-port") from error
