"""The admin port: probes for the kubelet, /metrics for Prometheus, /pdx/state and /pdx/verification for people.

The operator reads the finding of the transfer probes there.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from pdx_api.names import Mode, Role
from pdx_api.verification import PAIRS_PATH, RESULT_PATH
from pdx_proxy.config.settings import Settings
from pdx_proxy.endpoints.endpoint import Endpoint, names_in
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.process.exposition import render
from pdx_proxy.verification.prober import TransferProber

GetSnapshot = Callable[[], Snapshot]
GetReport = Callable[[], Awaitable[dict[str, Any]]]
"""Returns the sum of the workers' reports (see `Counters.report`)."""


def why_not_ready(snapshot: Snapshot, *, draining: bool, serving: int) -> str | None:
    """Return why the gateway must get no clients; None if it can serve them. `serving` is the number of workers."""
    if draining:
        return "draining"
    if not serving:
        return "no worker serves"
    return None if snapshot.decode else "no engine that can answer is warm"


def read_wait(text: str) -> float:
    """Return the seconds that a query writes; raises ValueError."""
    seconds = float(text)
    if not 0 <= seconds < inf:  # NaN too
        raise ValueError(text)
    return seconds


def create_admin(
    settings: Settings,
    snapshot: GetSnapshot,
    report: GetReport,
    draining: Callable[[], bool],
    serving: Callable[[], int],
    prober: TransferProber,
) -> web.Application:
    """Create the admin application. `serving` returns the number of workers that serve clients."""

    async def metrics(_: web.Request) -> web.Response:
        page = render(await report(), snapshot().everything)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def state(_: web.Request) -> web.Response:
        described = describe(settings, snapshot(), await report(), serving())
        return web.json_response({**described, "kvTransfer": prober.finding.as_json()})

    async def pairs(_: web.Request) -> web.Response:
        return web.json_response(prober.describe())

    async def finding(request: web.Request) -> web.Response:
        try:
            wait = read_wait(request.query.get("wait", "0"))
        except ValueError:
            raise web.HTTPBadRequest(text="write wait as seconds, 0 or more") from None
        return web.json_response(await prober.wait_for_change(request.query.get("after", ""), wait))

    async def alive(_: web.Request) -> web.Response:
        return web.Response()

    async def ready(_: web.Request) -> web.Response:
        why_not = why_not_ready(snapshot(), draining=draining(), serving=serving())
        return web.Response(status=503 if why_not else 200, text=why_not)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/pdx/state", state)
    app.router.add_get(PAIRS_PATH, pairs)
    app.router.add_get(RESULT_PATH, finding)
    for path in ("/healthz", "/health"):
        app.router.add_get(path, alive)
    app.router.add_get("/readyz", ready)
    return app


def describe(settings: Settings, snapshot: Snapshot, report: dict[str, Any], serving: int) -> dict[str, Any]:
    """Return the gateway's state as JSON values."""
    legs, limits = report["legs"], report.get("legLimits", {})
    in_flight = {
        **report["inFlight"],
        "prefill": sum(legs.get(e.name, 0) for e in snapshot.everything if e.role is Role.PREFILL),
        "decode": sum(legs.get(e.name, 0) for e in snapshot.everything if e.role is not Role.PREFILL),
    }
    return {
        "ready": why_not_ready(snapshot, draining=False, serving=serving) is None,
        "mode": mode_of(snapshot),
        "split": settings.choosing.split,
        "workers": settings.workers,
        "workersServing": serving,
        "endpoints": [
            _describe_endpoint(endpoint, legs.get(endpoint.name, 0), limits.get(endpoint.name))
            for endpoint in snapshot.everything
        ],
        "inFlight": in_flight,
        "suspendedPairs": sorted(map(names_in, snapshot.suspended)),
        "outcomes": report["outcomes"],
        "notSplit": report["notSplit"],
        "settlements": report["settlements"],
        "retries": report["retries"],
        "ejections": report.get("ejections", {}),
        "sheds": report["sheds"],
        "quarantined": report["quarantined"],
        "arrivals": report.get("arrivals", {}),
        "history": report.get("history", {}),
        "objectives": {
            "ttftSeconds": settings.slo.seconds().get("ttft", 0.0),
            "tpotSeconds": settings.slo.seconds().get("tpot", 0.0),
            "queueSeconds": settings.limits.max_wait_seconds,
        },
    }


def mode_of(snapshot: Snapshot) -> Mode | None:
    """Return the mode of the engines: Disaggregated while any engine is prefill or decode; None without engines."""
    roles = {endpoint.role for endpoint in snapshot.everything}
    if not roles:
        return None
    return Mode.AGGREGATED if roles == {Role.AGGREGATED} else Mode.DISAGGREGATED


def _describe_endpoint(endpoint: Endpoint, legs: int, limit: float | None) -> dict[str, Any]:
    identity = endpoint.identity
    return {
        "url": f"http://{endpoint.address}",
        "name": endpoint.name,
        "role": endpoint.role,
        "pod": endpoint.spec.pod or None,
        "rank": endpoint.spec.rank,
        "revision": endpoint.revision,
        "connector": endpoint.connector,
        "order": endpoint.order,
        "version": endpoint.version or None,
        "state": endpoint.state,
        "reason": endpoint.reason,
        "starts": endpoint.generation,
        "ejections": endpoint.ejections,
        "lostHandoffs": endpoint.lost,
        "engineId": identity.engine_id if identity else None,
        "inFlight": legs,
        "limit": limit,
    }
