"""Samples of a deployment's gateways and engines for `pdx top`, and those of this machine."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from pdx_api.verification import PAIRS_PATH
from pdx_api.vllm_metrics import EngineMetrics, read_metrics
from pdx_cli.inputs.target import Local
from pdx_cli.sources.answers import STATE_PATH, parsed, state_of
from pdx_cli.sources.client import AnswerError, Client, ForeignError, unreadable_gateway
from pdx_cli.sources.figures import Reading, Sample
from pdx_cli.sources.histograms import read_phases
from pdx_cli.sources.observation import Body

MAX_ENGINES: Final = 64
"""Engines whose counters one sample reads."""
ENGINE_SECONDS: Final = 1.5
"""Limit for an engine's /metrics: an engine that hangs must not delay the others' figures."""

Loads = dict[str, EngineMetrics]
Unanswered = dict[str, str]

Query = Callable[[str], Awaitable[str]]
"""Reads a path of one gateway's admin port; raises NoAnswerError."""


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


class NoAnswerError(Exception):
    """A gateway or an engine does not answer. The text says why."""


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
            reading = await reading_of("gateway", self._query)
        except AnswerError as error:
            raise unreadable_gateway(self.local.admin, error) from error
        except NoAnswerError as error:
            raise unreadable_gateway(self.local.admin, ForeignError(str(error))) from error
        loads, unanswered = await loads_of([reading], self._load)
        return Sample(self.clock(), (reading,), loads=loads, unanswered=unanswered)

    async def _query(self, path: str) -> str:
        return await self.client.text(f"{self.local.admin}{path}")

    async def _load(self, endpoint: Body) -> EngineMetrics | None:
        url = f"{str(endpoint['url']).rstrip('/')}/metrics"
        try:
            return read_metrics((await self.client.text(url, seconds=ENGINE_SECONDS)).encode(), endpoint.get("rank"))
        except AnswerError as error:
            raise NoAnswerError(str(error).removeprefix(f"{url} ")) from error


async def reading_of(name: str, query: Query) -> Reading:
    """Read one gateway; raises what `query` raises, and NoAnswerError."""
    state, page = await asyncio.gather(query(STATE_PATH), query("/metrics"))
    try:
        verification = parsed((await query(PAIRS_PATH)).encode()) or None
    except NoAnswerError:
        verification = None
    try:
        return Reading(name, state_of(json.loads(state)), read_phases(page), verification)
    except ValueError as error:
        raise NoAnswerError("this is not the admin port of a PDX gateway") from error


async def loads_of(
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
        elif isinstance(answer, NoAnswerError):
            unanswered[name] = str(answer)
        elif isinstance(answer, BaseException):
            raise answer
    return loads, unanswered
