"""What gateways say of their canaries: asked for on their admin ports, one request that waits for news to each.

An object's loop is woken when there is another verdict, and never waits for one. A gateway that has no news answers
once a minute; pods are listed when an object's gateways have changed, or do not answer.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from pdx_api.names import ADMIN_PORT, GATEWAY_CONTAINER, LABEL_DEPLOYMENT, LABEL_ROLE, PORT_ADMIN, ROLE_GATEWAY
from pdx_api.verification import LONGEST_WAIT, VERDICT_PATH, Finding, combined
from pdx_operator.kube.backoff import Backoff
from pdx_operator.kube.cache import Key
from pdx_operator.kube.client import ApiError, Cluster
from pdx_operator.kube.resources import POD
from pdx_operator.observed.workloads import Heard

_ANSWER_SECONDS: Final = 10.0
"""How long a gateway may take beside what it may wait."""
_LEAST_SECONDS: Final = 1.0
"""Between two questions to one gateway, however fast its news come."""
_LIST_SECONDS: Final = 600.0
"""After so long the pods are listed again whatever happens."""
_RETRY_SECONDS: Final = 2.0
"""After the first question without an answer, or list without a gateway; doubled after each further one."""
_TRIES: Final = 3
"""Questions in a row without an answer, after which a gateway counts as one that cannot be asked."""

_LISTS: Final = 5
"""Lists in a row without a gateway, in about a minute, after which none counts as reachable: a pod is seen late."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Followed:
    """One object's gateways."""

    task: asyncio.Task[None]
    state: object
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    findings: dict[str, Finding | None] = field(default_factory=dict)
    """By URL; None for a gateway that was asked in vain."""
    listed: int = 0
    """Gateways that the last list has shown."""
    empty: int = 0
    """Lists in a row that have shown none."""


class TransferPoller:
    """Owner of the questions to all gateways."""

    def __init__(self, cluster: Cluster, wake: Callable[[Key], None], random: Callable[[], float]) -> None:
        self._cluster = cluster
        self._wake = wake
        self._random = random
        self._followed: dict[Key, _Followed] = {}
        self._slots = asyncio.Semaphore(2)
        """Lists of pods that may be open."""
        self._session: aiohttp.ClientSession | None = None

    def follow(self, key: Key, state: object) -> None:
        """Ask this object's gateways from now on; another `state` says that they are others."""
        followed = self._followed.get(key)
        if followed is None:
            task = asyncio.get_running_loop().create_task(self._follow(key), name=f"canaries of {key}")
            self._followed[key] = _Followed(task, state)
        elif followed.state != state:
            followed.state = state
            followed.changed.set()

    def forget(self, key: Key) -> None:
        """Ask them no more."""
        followed = self._followed.pop(key, None)
        if followed is not None:
            followed.task.cancel()

    def of(self, key: Key) -> Heard:
        """What was heard last."""
        followed = self._followed.get(key)
        if followed is None:
            return Heard()
        told = [found for found in followed.findings.values() if found is not None]
        vain = followed.empty >= _LISTS if not followed.listed else len(followed.findings) == followed.listed
        return Heard(combined(told), silent=vain and not told)

    async def close(self) -> None:
        """End every question."""
        tasks = [followed.task for followed in self._followed.values()]
        self._followed.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _follow(self, key: Key) -> None:
        backoff = Backoff(_RETRY_SECONDS, 300.0, self._random)
        asking: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                followed = self._followed[key]
                followed.changed.clear()
                pause = _LIST_SECONDS
                try:
                    urls = await self._gateways(key)
                    self._ask_these(key, urls, asking)
                except ApiError as error:
                    log.debug("%s: its gateways cannot be listed: %s", key, error)
                    urls, pause = (), backoff.next()
                if urls:
                    backoff.reset()
                else:
                    pause = backoff.next()
                await _wait_for(followed.changed, pause)
        finally:
            for task in asking.values():
                task.cancel()
            await asyncio.gather(*asking.values(), return_exceptions=True)

    def _ask_these(self, key: Key, urls: tuple[str, ...], asking: dict[str, asyncio.Task[None]]) -> None:
        followed = self._followed[key]
        for url in asking.keys() - set(urls):
            asking.pop(url).cancel()
            followed.findings.pop(url, None)
        for url in urls:
            if url not in asking:
                asking[url] = asyncio.get_running_loop().create_task(self._ask(key, url))
        followed.listed = len(urls)
        followed.empty = 0 if urls else followed.empty + 1
        if followed.empty == _LISTS:
            self._wake(key)

    async def _gateways(self, key: Key) -> tuple[str, ...]:
        """Where the ready gateways of an object are asked."""
        selector = f"{LABEL_DEPLOYMENT}={key.name},{LABEL_ROLE}={ROLE_GATEWAY}"
        async with self._slots:
            found = await self._cluster.list(POD, key.namespace, labelSelector=selector, resourceVersion="0")
        return tuple(url for pod in found["items"] if (url := admin_url(pod)) is not None)

    async def _ask(self, key: Key, url: str) -> None:
        """Ask one gateway for ever."""
        backoff, failures, stamp = Backoff(_RETRY_SECONDS, 60.0, self._random), 0, ""
        while True:
            try:
                body = await self._news(url, stamp)
                stamp, finding = str(body["stamp"]), Finding.read(body["finding"])
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
                log.debug("%s: %s does not tell of its canaries: %r", key, url, error)
                failures, stamp = failures + 1, ""
                if failures == _TRIES:
                    self._put(key, url, None)
                    self._followed[key].changed.set()
                await asyncio.sleep(backoff.next())
                continue
            failures = 0
            backoff.reset()
            self._put(key, url, finding)
            await asyncio.sleep(_LEAST_SECONDS)

    async def _news(self, url: str, stamp: str) -> Mapping[str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), trust_env=False)
        query = {"after": stamp, "wait": f"{LONGEST_WAIT * (0.8 + 0.2 * self._random()):.0f}"}
        limit = aiohttp.ClientTimeout(total=LONGEST_WAIT + _ANSWER_SECONDS, connect=_ANSWER_SECONDS)
        async with self._session.get(url, params=query, timeout=limit) as response:
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            body: Mapping[str, Any] = await response.json()
            return body

    def _put(self, key: Key, url: str, finding: Finding | None) -> None:
        followed = self._followed[key]
        if url not in followed.findings or followed.findings[url] != finding:
            followed.findings[url] = finding
            self._wake(key)


def admin_url(pod: Mapping[str, Any]) -> str | None:
    """Where a gateway's pod tells of its canaries; None while it cannot."""
    status = pod.get("status") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    address = status.get("podIP")
    if not ready or not address or pod["metadata"].get("deletionTimestamp"):
        return None
    containers = pod["spec"]["containers"]
    ports = [p for c in containers if c["name"] == GATEWAY_CONTAINER for p in c.get("ports") or ()]
    port = next((p["containerPort"] for p in ports if p.get("name") == PORT_ADMIN), ADMIN_PORT)
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}{VERDICT_PATH}"


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
