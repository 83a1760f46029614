"""Asking gateways, and decode engines, for what `pdx top` shows: on this machine or in a cluster."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from pdx_api.names import ADMIN_PORT, LABEL_DEPLOYMENT, LABEL_ROLE, ROLE_GATEWAY, Role
from pdx_cli.errors import CommandError
from pdx_cli.inputs.target import InCluster
from pdx_cli.sources.answers import CANARY_PATH, tokens_of
from pdx_cli.sources.client import AnswerError, Client
from pdx_cli.sources.cluster import Look, sole_name
from pdx_cli.sources.figures import Reading, Sample, read_phases
from pdx_cli.sources.kube import Kube, PodAnswerError
from pdx_cli.sources.local import Local
from pdx_cli.sources.picture import Body, Tokens
from pdx_operator.kube.client import ApiError
from pdx_operator.kube.resources import POD

MOST_ENGINES: Final = 32
"""Decode engines that are asked for their counts at each sample."""


class Source(Protocol):
    """Where samples come from."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def place(self) -> str:
        """Where it is, for people."""

    @property
    def names(self) -> Mapping[str, str]:
        """What endpoints are called here, where that is not as the gateway calls them."""

    async def sample(self) -> Sample:
        """What there is now; raises CommandError with code 2 when that cannot be seen."""


class _UnansweredError(Exception):
    pass


@dataclass(slots=True)
class HereSource:
    """A gateway on this machine."""

    local: Local
    client: Client
    clock: Callable[[], float]
    place: str = "this machine"

    @property
    def name(self) -> str:
        """What it is called."""
        return self.local.name

    @property
    def names(self) -> Mapping[str, str]:
        """See `Source`."""
        return self.local.names

    async def sample(self) -> Sample:
        """See `Source`."""
        try:
            reading = await _reading("gateway", self._ask)
        except _UnansweredError as error:
            raise CommandError(f"The gateway cannot be asked: {error}.", code=2) from error
        decodes = _decodes([reading])
        pages = await asyncio.gather(*(self._page(str(endpoint["url"])) for endpoint in decodes.values()))
        return Sample(self.clock(), (reading,), tokens=_known(dict(zip(decodes, pages, strict=True))))

    async def _ask(self, path: str) -> str:
        try:
            return await self.client.text(f"{self.local.admin}{path}")
        except AnswerError as error:
            raise _UnansweredError(str(error)) from error

    async def _page(self, url: str) -> Tokens | None:
        try:
            return tokens_of((await self.client.text(f"{url.rstrip('/')}/metrics")).encode())
        except AnswerError:
            return None


@dataclass(slots=True)
class ClusterSource:
    """The gateways of a PDDeployment."""

    look: Look
    clock: Callable[[], float]

    @property
    def name(self) -> str:
        """The object's name."""
        return self.look.name

    @property
    def place(self) -> str:
        """Its namespace."""
        return f"namespace {self.look.namespace}"

    @property
    def names(self) -> Mapping[str, str]:
        """See `Source`."""
        return {}

    async def sample(self) -> Sample:
        """See `Source`."""
        selector = f"{LABEL_DEPLOYMENT}={self.look.name},{LABEL_ROLE}={ROLE_GATEWAY}"
        try:
            pods = (await self.look.kube.list(POD, self.look.namespace, labelSelector=selector))["items"]
        except ApiError as error:
            raise CommandError(f"The cluster cannot be looked at: {str(error).rstrip('.')}.", code=2) from error
        names = sorted(p["metadata"]["name"] for p in pods if (p.get("status") or {}).get("phase") == "Running")
        answers = await asyncio.gather(*(self._read(name) for name in names))
        readings = tuple(answer for answer in answers if isinstance(answer, Reading))
        decodes = _decodes(readings)
        pages = await asyncio.gather(*(self._page(endpoint) for endpoint in decodes.values()))
        silent = tuple(answer for answer in answers if isinstance(answer, str))
        return Sample(self.clock(), readings, silent, _known(dict(zip(decodes, pages, strict=True))))

    async def _read(self, pod: str) -> Reading | str:
        async def ask(path: str) -> str:
            try:
                body = await self.look.kube.ask_pod(self.look.namespace, pod, ADMIN_PORT, path)
            except PodAnswerError as error:
                raise _UnansweredError(str(error)) from error
            return body.decode(errors="replace")

        try:
            return await _reading(pod, ask)
        except _UnansweredError as error:
            return f"{pod}: {error}"

    async def _page(self, endpoint: Body) -> Tokens | None:
        port = urlsplit(str(endpoint["url"])).port
        if not endpoint.get("pod") or port is None:
            return None
        try:
            return tokens_of(await self.look.kube.ask_pod(self.look.namespace, endpoint["pod"], port, "/metrics"))
        except PodAnswerError:
            return None


@asynccontextmanager
async def opened(what: Local | InCluster, clock: Callable[[], float]) -> AsyncIterator[Source]:
    """The source of what is meant; raises CommandError with code 2."""
    if isinstance(what, Local):
        async with Client() as client:
            yield HereSource(what, client, clock)
        return
    kube, namespace = await Kube.of(what.kubeconfig, what.context)
    try:
        namespace = what.namespace or namespace
        look = Look(kube, namespace, what.name or await sole_name(kube, namespace))
        await look.object()
        yield ClusterSource(look, clock)
    finally:
        await kube.close()


async def _reading(name: str, ask: Any) -> Reading:
    state, page = await asyncio.gather(ask("/pdx/state"), ask("/metrics"))
    try:
        canary = json.loads(await ask(CANARY_PATH))
    except (_UnansweredError, ValueError):
        canary = None
    try:
        return Reading(name, json.loads(state), read_phases(page), canary)
    except ValueError as error:
        raise _UnansweredError("it does not speak as a gateway of PDX") from error


def _decodes(readings: Any) -> Mapping[str, Body]:
    found = {e["name"]: e for reading in readings for e in reading.state["endpoints"] if e["role"] == Role.DECODE}
    return dict(sorted(found.items())[:MOST_ENGINES])


def _known(tokens: Mapping[str, Tokens | None]) -> dict[str, Tokens]:
    return {name: count for name, count in tokens.items() if count is not None}
