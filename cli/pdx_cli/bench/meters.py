"""Reads the counters of a deployment's gateways and engines, and the load of its engines."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from pdx_api.kube.client import ApiError
from pdx_api.names import ADMIN_PORT, Role
from pdx_api.vllm_metrics import EngineMetrics, read_metrics
from pdx_cli.bench.analysis.counters import EngineTotals, GatewayTotals, read_gateway
from pdx_cli.sources.access import ObjectAccess
from pdx_cli.sources.answers import STATE_PATH
from pdx_cli.sources.client import AnswerError, Client
from pdx_cli.sources.figures import WARM
from pdx_cli.sources.kube import PodAnswerError

_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine at one moment."""

    role: Role
    metrics: EngineMetrics


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All counters at one moment."""

    gateway: GatewayTotals
    engines: Mapping[str, Engine] = field(default_factory=dict)
    cold: tuple[str, ...] = ()
    """Endpoints that the gateway has not warmed up, or has ejected."""

    def totals(self, *roles: Role) -> EngineTotals:
        """The counters of the engines of these roles together."""
        return EngineTotals.sum(EngineTotals.of(each.metrics) for each in self.engines.values() if each.role in roles)

    @property
    def prefix_caching(self) -> bool | None:
        """Whether every engine keeps prefixes; None if none reports it."""
        settings = [each.metrics.cache_settings.get("enable_prefix_caching") for each in self.engines.values()]
        known = [setting == "True" for setting in settings if setting is not None]
        return all(known) if known else None


class Meters(Protocol):
    """Reads one deployment."""

    async def read(self) -> Snapshot | None:
        """Read everything; None if the gateway does not answer, or there is none."""

    async def engines(self) -> dict[str, Engine]:
        """Read the engines of the last `read`. Called while requests are measured: must not take long."""


@dataclass(slots=True)
class NoMeters:
    """A server of which only the URL is given."""

    async def read(self) -> Snapshot | None:
        """See `Meters`."""
        return None

    async def engines(self) -> dict[str, Engine]:
        """See `Meters`."""
        return {}


@dataclass(slots=True)
class LocalMeters:
    """A gateway on this machine and its engines."""

    admin: str
    """Base URL of the admin port."""
    client: Client
    names: Mapping[str, str] = field(default_factory=dict)
    """HOST:PORT of an engine -> name of its process."""
    _engines: dict[str, tuple[str, Role]] = field(default_factory=dict)
    """Name -> URL and role, of the last complete reading."""

    async def read(self) -> Snapshot | None:
        """See `Meters`."""
        try:
            state = json.loads(await self.client.text(f"{self.admin}{STATE_PATH}", seconds=_SECONDS))
            page = await self.client.text(f"{self.admin}/metrics", seconds=_SECONDS)
        except (AnswerError, ValueError):
            return None
        self._engines = _engines_of(state, self.names)
        return Snapshot(read_gateway(page.encode()), await self.engines(), _cold([state]))

    async def engines(self) -> dict[str, Engine]:
        """See `Meters`."""
        names = list(self._engines)
        pages = await asyncio.gather(*(self._page(self._engines[name][0]) for name in names))
        return {n: Engine(self._engines[n][1], read_metrics(p)) for n, p in zip(names, pages, strict=True) if p}

    async def _page(self, url: str) -> bytes:
        try:
            return (await self.client.text(f"{url}/metrics", seconds=_SECONDS)).encode()
        except AnswerError:
            return b""


@dataclass(slots=True)
class ClusterMeters:
    """The gateways and engines of a PDDeployment, through the API server."""

    access: ObjectAccess
    _engines: dict[str, tuple[str, int, Role]] = field(default_factory=dict)
    """Name -> pod, port and role, of the last complete reading."""

    async def read(self) -> Snapshot | None:
        """See `Meters`."""
        try:
            names = await self.access.gateway_pods()
        except ApiError:
            return None
        pages = [page for name in names if (page := await self._pod(name, ADMIN_PORT, "/metrics"))]
        states = [json.loads(body) for name in names if (body := await self._pod(name, ADMIN_PORT, STATE_PATH))]
        if not pages:
            return None
        self._engines = {key: value for state in states for key, value in _pods_of(state).items()}
        gateway = GatewayTotals()
        for page in pages:
            gateway = gateway + read_gateway(page)
        return Snapshot(gateway, await self.engines(), _cold(states))

    async def engines(self) -> dict[str, Engine]:
        """See `Meters`."""
        names = list(self._engines)
        pages = await asyncio.gather(*(self._pod(*self._engines[name][:2], "/metrics") for name in names))
        return {n: Engine(self._engines[n][2], read_metrics(p)) for n, p in zip(names, pages, strict=True) if p}

    async def _pod(self, pod: str, port: int, path: str) -> bytes:
        try:
            return await self.access.kube.query_pod(self.access.namespace, pod, port, path)
        except PodAnswerError:
            return b""


def _endpoints(state: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return state.get("endpoints") or ()


def _cold(states: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    found = {str(each["name"]) for state in states for each in _endpoints(state) if each.get("state") != WARM}
    return tuple(sorted(found))


def _engines_of(state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, tuple[str, Role]]:
    """Each engine once: the ranks of one engine have one page."""
    found: dict[str, tuple[str, Role]] = {}
    urls: set[str] = set()
    for endpoint in _endpoints(state):
        url = str(endpoint["url"]).rstrip("/")
        if url not in urls:
            urls.add(url)
            found[names.get(url.rpartition("/")[2], str(endpoint["name"]))] = (url, Role(endpoint["role"]))
    return found


def _pods_of(state: Mapping[str, Any]) -> dict[str, tuple[str, int, Role]]:
    found: dict[str, tuple[str, int, Role]] = {}
    for endpoint in _endpoints(state):
        port = urlsplit(str(endpoint["url"])).port
        if endpoint.get("pod") and port is not None:
            found.setdefault(str(endpoint["pod"]), (str(endpoint["pod"]), port, Role(endpoint["role"])))
    return found
