"""Samples of a deployment's gateways and engines for `pdx top`, on this machine or in a cluster."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

from pdx_api.names import ADMIN_PORT
from pdx_api.verification import PAIRS_PATH
from pdx_api.vllm_metrics import EngineMetrics, read_metrics
from pdx_cli.inputs.target import InCluster, Local
from pdx_cli.sources.access import ObjectAccess, access_to, unreadable
from pdx_cli.sources.answers import STATE_PATH, parsed, state_of
from pdx_cli.sources.client import AnswerError, Client, ForeignError, unreadable_gateway
from pdx_cli.sources.figures import Reading, Sample
from pdx_cli.sources.histograms import read_phases
from pdx_cli.sources.kube import PodAnswerError
from pdx_cli.sources.observation import Body
from pdx_operator.kube.client import ApiError

MAX_ENGINES: Final = 64
"""Engines whose counters one sample reads."""
ENGINE_SECONDS: Final = 1.5
"""Limit for an engine's /metrics: an engine that hangs must not delay the others' figures."""

Loads = dict[str, EngineMetrics]
Unanswered = dict[str, str]

Query = Callable[[str], Awaitable[str]]
"""Reads a path of one gateway's admin port; raises _NoAnswerError."""


class Sampler(Protocol):
    """Takes samples of one deployment."""

    @property
    def name(self) -> str:
        """Name of the deployment."""

    @property
    def location(self) -> str:
        """Where it runs, for the user."""

    @property
    def names(self) -> Mapping[str, str]:
        """The gateway's name of an endpoint -> name to show, where they differ."""

    async def sample(self) -> Sample:
        """Take one sample; raises CommandError with code 2."""


class _NoAnswerError(Exception):
    pass


@dataclass(slots=True)
class LocalSampler:
    """Samples a gateway on this machine."""

    local: Local
    client: Client
    clock: Callable[[], float]
    location: str = "this machine"

    @property
    def name(self) -> str:
        """See `Sampler`."""
        return self.local.name

    @property
    def names(self) -> Mapping[str, str]:
        """See `Sampler`."""
        return self.local.names

    async def sample(self) -> Sample:
        """See `Sampler`."""
        try:
            reading = await _reading("gateway", self._query)
        except AnswerError as error:
            raise unreadable_gateway(self.local.admin, error) from error
        except _NoAnswerError as error:
            raise unreadable_gateway(self.local.admin, ForeignError(str(error))) from error
        loads, unanswered = await _loads([reading], self._load)
        return Sample(self.clock(), (reading,), loads=loads, unanswered=unanswered)

    async def _query(self, path: str) -> str:
        return await self.client.text(f"{self.local.admin}{path}")

    async def _load(self, endpoint: Body) -> EngineMetrics | None:
        url = f"{str(endpoint['url']).rstrip('/')}/metrics"
        try:
            return read_metrics((await self.client.text(url, seconds=ENGINE_SECONDS)).encode(), endpoint.get("rank"))
        except AnswerError as error:
            raise _NoAnswerError(str(error).removeprefix(f"{url} ")) from error


@dataclass(slots=True)
class ClusterSampler:
    """Samples the gateways of a PDDeployment."""

    access: ObjectAccess
    clock: Callable[[], float]

    @property
    def name(self) -> str:
        """See `Sampler`."""
        return self.access.name

    @property
    def location(self) -> str:
        """See `Sampler`."""
        return f"namespace {self.access.namespace}"

    @property
    def names(self) -> Mapping[str, str]:
        """See `Sampler`."""
        return {}

    async def sample(self) -> Sample:
        """See `Sampler`."""
        try:
            names = await self.access.gateway_pods()
        except ApiError as error:
            raise unreadable(error) from error
        answers = await asyncio.gather(*(self._read(name) for name in names))
        readings = tuple(answer for answer in answers if isinstance(answer, Reading))
        loads, unanswered = await _loads(readings, self._load)
        silent = tuple(answer for answer in answers if isinstance(answer, str))
        return Sample(self.clock(), readings, silent, loads, unanswered)

    async def _read(self, pod: str) -> Reading | str:
        """Return the reading, or the reason why there is none."""

        async def query(path: str) -> str:
            try:
                body = await self.access.kube.query_pod(self.access.namespace, pod, ADMIN_PORT, path)
            except PodAnswerError as error:
                raise _NoAnswerError(str(error)) from error
            return body.decode(errors="replace")

        try:
            return await _reading(pod, query)
        except _NoAnswerError as error:
            return f"{pod}: {error}"

    async def _load(self, endpoint: Body) -> EngineMetrics | None:
        port = urlsplit(str(endpoint["url"])).port
        if not endpoint.get("pod") or port is None:
            return None
        try:
            page = await self.access.kube.query_pod(self.access.namespace, endpoint["pod"], port, "/metrics")
        except PodAnswerError as error:
            if error.reached:
                raise _NoAnswerError(str(error)) from error
            return None
        return read_metrics(page, endpoint.get("rank"))


@asynccontextmanager
async def sampler_of(target: Local | InCluster, clock: Callable[[], float]) -> AsyncIterator[Sampler]:
    """Connect to the target; raises CommandError with code 2."""
    if isinstance(target, Local):
        async with Client() as client:
            yield LocalSampler(target, client, clock)
        return
    async with access_to(target) as access:
        await access.object()
        yield ClusterSampler(access, clock)


async def _reading(name: str, query: Query) -> Reading:
    state, page = await asyncio.gather(query(STATE_PATH), query("/metrics"))
    try:
        verification = parsed((await query(PAIRS_PATH)).encode()) or None
    except _NoAnswerError:
        verification = None
    try:
        return Reading(name, state_of(json.loads(state)), read_phases(page), verification)
    except ValueError as error:
        raise _NoAnswerError("this is not the admin port of a PDX gateway") from error


async def _loads(
    readings: Iterable[Reading], read: Callable[[Body], Awaitable[EngineMetrics | None]]
) -> tuple[Loads, Unanswered]:
    """Read the load of every engine, by endpoint, and why engines did not answer."""
    found = {str(e["name"]): e for reading in readings for e in reading.state["endpoints"]}
    names = sorted(found)[:MAX_ENGINES]
    answers = await asyncio.gather(*(read(found[name]) for name in names), return_exceptions=True)
    loads, unanswered = Loads(), Unanswered()
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, EngineMetrics):
            loads[name] = answer
        elif isinstance(answer, _NoAnswerError):
            unanswered[name] = str(answer)
        elif isinstance(answer, BaseException):
            raise answer
    return loads, unanswered
