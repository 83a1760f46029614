"""Discovery of engines as pods of a cluster: list the pods, watch them, and resume after every failure."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from pdx_api.names import LABEL_DEPLOYMENT, LABEL_ROLE, Role
from pdx_proxy.config.settings import EndpointSpec
from pdx_proxy.discovery.pod_api import ClusterError, CredentialsError, ExpiredError, PodApi
from pdx_proxy.discovery.pods import Pod, Pods

_log: Final = logging.getLogger(__name__)

_WATCH_SECONDS: Final = 120
"""Longest duration of one watch; a random part of up to a fourth is subtracted.

Watches are this short because a proxy between the two may keep a connection open after it has lost the API server.
"""
_RESYNC_SECONDS: Final = 900.0
"""How long watch events alone are trusted. Then all pods are listed again."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
_LASTING_SECONDS: Final = 1.0
"""A watch that lasted this long shows that the API server works, even without an event."""

SpecSink = Callable[[Iterable[EndpointSpec]], None]
"""Receives the specs of all engines at each change."""


class DiscoveryError(Exception):
    """Discovery cannot continue; the message gives the reason."""


class Discovery(Protocol):
    """A source of endpoint specs."""

    async def run(self, sink: SpecSink) -> None:
        """Send all specs to `sink` at each change until cancelled; raises DiscoveryError if that is impossible."""


class PodDiscovery:
    """The engine pods of one PDDeployment.

    While the API server is unreachable nothing is sent, so the gateway keeps the endpoints that it has.
    """

    def __init__(self, namespace: str, deployment: str, random: Callable[[], float]) -> None:
        """`random` returns numbers from 0 to 1. They keep the requests of several gateways apart."""
        self._namespace = namespace
        self._deployment = deployment
        self._random = random

    async def run(self, sink: SpecSink) -> None:
        roles = ", ".join(Role)
        selector = f"{LABEL_DEPLOYMENT}={self._deployment},{LABEL_ROLE} in ({roles})"
        try:
            async with PodApi.connect(self._namespace, selector) as api:
                await PodWatcher(api, sink, log_warning, self._random).run()
        except CredentialsError as error:
            raise DiscoveryError(f"cannot reach a cluster: {error}") from error


class PodWatcher:
    """Lists pods, watches their changes, and starts again after every end and every error."""

    def __init__(
        self,
        api: PodApi,
        sink: SpecSink,
        log: Callable[[str], None],
        random: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._sink = sink
        self._log = log
        self._random = random
        self._clock = clock
        self._pods = Pods(log)
        self._version: str | None = None
        """The version of the pods in `_pods`; None when all pods must be listed."""
        self._listed_at = 0.0
        self._pause = _FIRST_PAUSE
        self._unreachable = False
        """Whether the last logged line reports that the API server does not answer."""

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                if self._version is None or self._clock() - self._listed_at > _RESYNC_SECONDS:
                    await self._list()
                await self._watch()
            except ExpiredError:
                self._version = None
                if self._clock() - self._listed_at >= _LASTING_SECONDS:
                    self._pause = _FIRST_PAUSE  # the API server answers again
            except ClusterError as error:
                if not self._unreachable:
                    self._unreachable = True
                    self._log(f"cannot watch pods, keeps the endpoints it has: {error}")
            await asyncio.sleep(self._pause * (0.5 + self._random()))
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    async def _list(self) -> None:
        pods, self._version = await self._api.list()
        self._listed_at = self._clock()
        self._pods.replace(pods)
        self._sink(self._pods.endpoints)

    async def _watch(self) -> None:
        assert self._version is not None, "a watch starts at the version of a list"
        seconds = int(_WATCH_SECONDS * (1 - self._random() / 4))
        async with self._api.watch(self._version, seconds) as events:
            if self._unreachable:
                self._unreachable = False
                self._log("watches pods again")
            started = self._clock()
            try:
                async for kind, pod in events:
                    self._pause = _FIRST_PAUSE
                    self._apply(kind, pod)
            finally:
                if self._clock() - started >= _LASTING_SECONDS:
                    self._pause = _FIRST_PAUSE

    def _apply(self, kind: str, pod: Pod) -> None:
        self._version = pod["metadata"]["resourceVersion"]
        if kind == "DELETED":
            self._pods.remove(pod)
        elif kind != "BOOKMARK":
            self._pods.put(pod)
        self._sink(self._pods.endpoints)


def log_warning(text: str) -> None:
    """Log one line at level WARNING, with a full stop at its end."""
    _log.warning("%s.", text.rstrip("."))
