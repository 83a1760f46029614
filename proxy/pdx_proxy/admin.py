"""The admin port: /metrics for Prometheus, /pdx/state for people and the operator."""

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from pdx_api.names import Role
from pdx_proxy.endpoints import Endpoint, Snapshot
from pdx_proxy.metrics import render
from pdx_proxy.settings import Settings

GetSnapshot = Callable[[], Snapshot]
GetReport = Callable[[], Awaitable[dict[str, Any]]]
"""The sum of the workers' reports (see `Counters.report`)."""


def create_admin(settings: Settings, snapshot: GetSnapshot, report: GetReport) -> web.Application:
    """The admin application."""

    async def metrics(_: web.Request) -> web.Response:
        page = render(await report(), snapshot().everything)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def state(_: web.Request) -> web.Response:
        return web.json_response(describe(settings, snapshot(), await report()))

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/pdx/state", state)
    app.router.add_get("/health", health)
    return app


def describe(settings: Settings, snapshot: Snapshot, report: dict[str, Any]) -> dict[str, Any]:
    """The gateway's state as JSON values."""
    legs = report["legs"]
    in_flight = {
        **report["inFlight"],
        "prefill": sum(legs.get(e.name, 0) for e in snapshot.everything if e.role is Role.PREFILL),
        "decode": sum(legs.get(e.name, 0) for e in snapshot.everything if e.role is not Role.PREFILL),
    }
    return {
        "ready": bool(snapshot.decode),
        "mode": settings.mode,
        "workers": settings.workers,
        "endpoints": [_describe_endpoint(endpoint, legs.get(endpoint.name, 0)) for endpoint in snapshot.everything],
        "inFlight": in_flight,
        "outcomes": report["outcomes"],
        "settlements": report["settlements"],
        "retries": report["retries"],
    }


def _describe_endpoint(endpoint: Endpoint, legs: int) -> dict[str, Any]:
    identity = endpoint.identity
    return {
        "url": f"http://{endpoint.address}",
        "name": endpoint.name,
        "role": endpoint.role,
        "revision": endpoint.revision,
        "connector": endpoint.connector,
        "order": endpoint.order,
        "state": endpoint.state,
        "reason": endpoint.reason,
        "starts": endpoint.start,
        "engineId": identity.engine_id if identity else None,
        "inFlight": legs,
    }
