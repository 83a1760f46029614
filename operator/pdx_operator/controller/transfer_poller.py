"""Polls the admin ports of gateways for the results of their transfer probes: one long poll for each gateway.

A new result wakes the reconciler, which never waits for one. A gateway without a new result answers once a minute. Pods
are listed again when the gateways of an object have changed, or do not answer.
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
from pdx_operator.kube.client import ApiError, Cluster
from pdx_operator.kube.resources import POD, Key
from pdx_operator.observed.transfer_report import TransferReport

_ANSWER_SECONDS: Final = 10.0
"""Seconds that an answer may take in addition to the gateway's wait."""
_MIN_SECONDS: Final = 1.0
"""Between two polls of one gateway."""
_LIST_SECONDS: Final = 600.0
"""Between two lists of pods without a change."""
_RETRY_SECONDS: Final = 2.0
"""After the first failed poll, or the first list without a gateway; doubled after each further one."""
_MAX_FAILURES: Final = 3
"""Consecutive failed polls after which a gateway counts as unreachable."""
_MAX_EMPTY_LISTS: Final = 5
"""Consecutive lists without a gateway, over about a minute, after which no gateway counts as reachable: new pods appear
with a delay."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Followed:
    """The gateways of one object."""

    task: asyncio.Task[None]
    state: object
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    findings: dict[str, Finding | None] = field(default_factory=dict)
    """By URL; None for an unreachable gateway."""
    listed: int = 0
    """Gateways in the last list."""
    empty_lists: int = 0
    """Consecutive lists without a gateway."""


class TransferPoller:
    """Owner of the polls to all gateways. `notify` is called with the key of an object whose report has changed."""

    def __init__(self, cluster: Cluster, notify: Callable[[Key], None], random: Callable[[], float]) -> None:
        self._cluster = cluster
        self._notify = notify
        self._random = random
        self._followed: dict[Key, _Followed] = {}
        self._slots = asyncio.Semaphore(2)
        """Bounds concurrent lists of pods."""
        self._session: aiohttp.ClientSession | None = None

    def follow(self, key: Key, state: object) -> None:
        """Poll this object's gateways from now on; another `state` means that the gateways have changed."""
        followed = self._followed.get(key)
        if followed is None:
            task = asyncio.get_running_loop().create_task(self._follow(key), name=f"transfer reports of {key}")
            self._followed[key] = _Followed(task, state)
        elif followed.state != state:
            followed.state = state
            followed.changed.set()

    def forget(self, key: Key) -> None:
        """Stop polling this object's gateways."""
        followed = self._followed.pop(key, None)
        if followed is not None:
            followed.task.cancel()

    def report(self, key: Key) -> TransferReport:
        """The latest results of an object's gateways, combined."""
        followed = self._followed.get(key)
        if followed is None:
            return TransferReport()
        received = [finding for finding in followed.findings.values() if finding is not None]
        if followed.listed:
            no_answers = len(followed.findings) == followed.listed
        else:
            no_answers = followed.empty_lists >= _MAX_EMPTY_LISTS
        return TransferReport(combined(received), unreachable=no_answers and not received)

    async def close(self) -> None:
        """End all polls."""
        tasks = [followed.task for followed in self._followed.values()]
        self._followed.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _follow(self, key: Key) -> None:
        backoff = Backoff(_RETRY_SECONDS, 300.0, self._random)
        polls: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                followed = self._followed[key]
                followed.changed.clear()
                pause = _LIST_SECONDS
                try:
                    urls = await self._gateways(key)
                    self._update_polls(key, urls, polls)
                except ApiError as error:
                    log.debug("%s: its gateways cannot be listed: %s", key, error)
                    urls, pause = (), backoff.next()
                if urls:
                    backoff.reset()
                else:
                    pause = backoff.next()
                await _wait_for(followed.changed, pause)
        finally:
            for task in polls.values():
                task.cancel()
            await asyncio.gather(*polls.values(), return_exceptions=True)

    def _update_polls(self, key: Key, urls: tuple[str, ...], polls: dict[str, asyncio.Task[None]]) -> None:
        """Start polls of new gateways, and end polls of deleted ones."""
        followed = self._followed[key]
        for url in polls.keys() - set(urls):
            polls.pop(url).cancel()
            followed.findings.pop(url, None)
        for url in urls:
            if url not in polls:
                polls[url] = asyncio.get_running_loop().create_task(self._poll(key, url))
        followed.listed = len(urls)
        followed.empty_lists = 0 if urls else followed.empty_lists + 1
        if followed.empty_lists == _MAX_EMPTY_LISTS:
            self._notify(key)

    async def _gateways(self, key: Key) -> tuple[str, ...]:
        """URLs of the ready gateways of an object."""
        selector = f"{LABEL_DEPLOYMENT}={key.name},{LABEL_ROLE}={ROLE_GATEWAY}"
        async with self._slots:
            found = await self._cluster.list(POD, key.namespace, labelSelector=selector, resourceVersion="0")
        return tuple(url for pod in found["items"] if (url := admin_url(pod)) is not None)

    async def _poll(self, key: Key, url: str) -> None:
        """Poll one gateway. Never returns."""
        backoff, failures, stamp = Backoff(_RETRY_SECONDS, 60.0, self._random), 0, ""
        while True:
            try:
                body = await self._fetch(url, stamp)
                stamp, finding = str(body["stamp"]), Finding.read(body["finding"])
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
                log.debug("%s: %s does not report its transfer probes: %r", key, url, error)
                failures, stamp = failures + 1, ""
                if failures == _MAX_FAILURES:
                    self._store(key, url, None)
                    self._followed[key].changed.set()
                await asyncio.sleep(backoff.next())
                continue
            failures = 0
            backoff.reset()
            self._store(key, url, finding)
            await asyncio.sleep(_MIN_SECONDS)

    async def _fetch(self, url: str, stamp: str) -> Mapping[str, Any]:
        """Wait for a result that is newer than `stamp`, or for the end of the gateway's wait."""
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), trust_env=False)
        query = {"after": stamp, "wait": f"{LONGEST_WAIT * (0.8 + 0.2 * self._random()):.0f}"}
        limit = aiohttp.ClientTimeout(total=LONGEST_WAIT + _ANSWER_SECONDS, connect=_ANSWER_SECONDS)
        async with self._session.get(url, params=query, timeout=limit) as response:
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            body: Mapping[str, Any] = await response.json()
            return body

    def _store(self, key: Key, url: str, finding: Finding | None) -> None:
        followed = self._followed[key]
        if url not in followed.findings or followed.findings[url] != finding:
            followed.findings[url] = finding
            self._notify(key)


def admin_url(pod: Mapping[str, Any]) -> str | None:
    """URL of a gateway pod's result; None while the pod is not ready."""
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
