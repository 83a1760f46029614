"""What kubelet and Prometheus ask the operator: does it live, can it work, what has it done."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from pdx_operator.app.metrics import Metrics


@asynccontextmanager
async def serving(port: int, is_ready: Callable[[], bool], metrics: Metrics) -> AsyncIterator[None]:
    """Serve /healthz, /readyz and /metrics for the length of a block; nothing with port 0. Raises OSError."""
    if not port:
        yield
        return

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        if is_ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="the cluster has not been read yet\n")

    async def measured(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", live), web.get("/readyz", ready), web.get("/metrics", measured)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
    await runner.setup()
    try:
        # The address is the pod's own.
        await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104
        yield
    finally:
        await runner.cleanup()
