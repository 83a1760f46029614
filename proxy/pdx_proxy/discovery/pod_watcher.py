"""Discovery of engines as pods of a cluster."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from pdx_api.kube.client import Cluster
from pdx_api.kube.credentials import CredentialsError
from pdx_api.kube.informer import Informer
from pdx_api.kube.kinds import POD
from pdx_api.names import LABEL_DEPLOYMENT, LABEL_ROLE, Role
from pdx_proxy.config.settings import EndpointSpec
from pdx_proxy.discovery.pods import Pods

_log: Final = logging.getLogger(__name__)

_TRUSTED_SECONDS: Final = 900.0
"""How long watch events alone are trusted. Then all pods are listed again."""

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
        self._selector = f"{LABEL_DEPLOYMENT}={deployment},{LABEL_ROLE} in ({', '.join(Role)})"
        self._random = random

    async def run(self, sink: SpecSink) -> None:
        """See `Discovery`."""
        try:
            cluster = await Cluster.connect("pdx-gateway", requests=1, watches=1, own=False)
        except CredentialsError as error:
            raise DiscoveryError(f"cannot reach a cluster: {error}") from error
        try:
            await self.informer(cluster, sink).run()
        finally:
            await cluster.close()

    def informer(self, cluster: Cluster, sink: SpecSink) -> Informer:
        """What lists and watches the pods."""
        pods, where = Pods(log_warning, sink), (POD, self._namespace, self._selector)
        return Informer(cluster, pods, *where, self._random, time.monotonic, trusted_seconds=_TRUSTED_SECONDS)


def log_warning(text: str) -> None:
    """Log one line at level WARNING, with a full stop at its end."""
    _log.warning("%s.", text.rstrip("."))
