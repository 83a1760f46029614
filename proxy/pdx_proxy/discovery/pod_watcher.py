"""Which engines there are: told once by flags, or found and watched as pods of a cluster."""

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
"""How long one watch lasts, less up to a fourth: what lies between may keep a connection to a lost server open."""
_RESYNC_SECONDS: Final = 900.0
"""How long changes alone are believed: then all pods are listed anew."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
_LASTING_SECONDS: Final = 1.0
"""A watch that lasted so long shows that the API server is well, also when nothing happened in it."""

SpecSink = Callable[[Iterable[EndpointSpec]], None]
"""Told of all engines there are, at each change."""


class DiscoveryError(Exception):
    """Discovery can not go on; the text says why."""


class Discovery(Protocol):
    """Something that knows which engines there are."""

    async def run(self, tell: SpecSink) -> None:
        """SpecSink until cancelled; raises DiscoveryError when that can not work."""


class PodDiscovery:
    """The engine pods of one PDDeployment.

    While the API server is away nothing is told, so that the gateway goes on with what it knows.
    """

    def __init__(self, namespace: str, deployment: str, random: Callable[[], float]) -> None:
        """`random` gives numbers from 0 to 1, which keep gateways from asking in step."""
        self._namespace = namespace
        self._deployment = deployment
        self._random = random

    async def run(self, tell: SpecSink) -> None:
        roles = ", ".join(Role)
        selector = f"{LABEL_DEPLOYMENT}={self._deployment},{LABEL_ROLE} in ({roles})"
        try:
            async with PodApi.connect(self._namespace, selector) as api:
                await Follower(api, tell, say, self._random).run()
        except CredentialsError as error:
            raise DiscoveryError(f"cannot reach a cluster: {error}") from error


class Follower:
    """Lists pods, follows their changes, and begins anew whatever happens."""

    def __init__(
        self,
        api: PodApi,
        tell: SpecSink,
        say: Callable[[str], None],
        random: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._tell = tell
        self._say = say
        self._random = random
        self._clock = clock
        self._pods = Pods(say)
        self._version: str | None = None
        """What the pods are known up to; None when all are to be listed."""
        self._listed = 0.0
        self._pause = _FIRST_PAUSE
        self._away = False
        """Whether the last thing said is that the API server does not answer."""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                if self._version is None or self._clock() - self._listed > _RESYNC_SECONDS:
                    await self._list()
                await self._watch()
            except ExpiredError:
                self._version = None
            except ClusterError as error:
                if not self._away:
                    self._away = True
                    self._say(f"cannot watch pods, goes on with those it knows: {error}")
            await asyncio.sleep(self._pause * (0.5 + self._random()))
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    async def _list(self) -> None:
        pods, self._version = await self._api.list()
        self._listed = self._clock()
        self._pods.replace(pods)
        self._tell(self._pods.endpoints)

    async def _watch(self) -> None:
        assert self._version is not None, "a list tells where a watch begins"
        seconds = int(_WATCH_SECONDS * (1 - self._random() / 4))
        async with self._api.watch(self._version, seconds) as events:
            if self._away:
                self._away = False
                self._say("watches pods again")
            opened = self._clock()
            try:
                async for kind, pod in events:
                    self._pause = _FIRST_PAUSE
                    self._take(kind, pod)
            finally:
                if self._clock() - opened >= _LASTING_SECONDS:
                    self._pause = _FIRST_PAUSE

    def _take(self, kind: str, pod: Pod) -> None:
        self._version = pod["metadata"]["resourceVersion"]
        if kind == "DELETED":
            self._pods.remove(pod)
        elif kind != "BOOKMARK":
            self._pods.put(pod)
        self._tell(self._pods.endpoints)


def say(text: str) -> None:
    """One line to whoever reads the gateway's log."""
    _log.warning("%s.", text.rstrip("."))
