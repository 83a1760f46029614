"""Polls the admin ports of gateways for the results of their transfer probes: one long poll for each gateway.

A new result wakes the reconciler, which never waits for one. A gateway without a new result answers once a minute. Pods
are listed again when the gateways of an object have changed, or do not answer.

A gateway is not trusted, because a tenant may run any image: the operator connects to pods of its own gateway
Deployment only, at one port, follows no redirect, and reads a bounded answer.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from pdx_api.kube.backoff import Backoff
from pdx_api.kube.client import ApiError, Cluster
from pdx_api.kube.kinds import POD, REPLICA_SET
from pdx_api.names import ADMIN_PORT, LABEL_DEPLOYMENT, LABEL_ROLE, ROLE_GATEWAY, gateway_name
from pdx_api.verification import LONGEST_WAIT, RESULT_PATH, Finding, combined
from pdx_operator.kube.resources import Key, controller_of
from pdx_operator.observed.transfer_report import TransferReport
from pdx_operator.observed.workloads import ObservedGateway

_ANSWER_SECONDS: Final = 10.0
"""Seconds that an answer may take in addition to the gateway's wait."""
_MIN_SECONDS: Final = 1.0
"""Between two polls of one gateway."""
_ANSWER_BYTES: Final = 64 * 1024
"""Largest answer of a gateway."""
_MAX_GATEWAYS: Final = 64
"""`spec.gateway.replicas` allows no more."""
_MAX_REPLICA_SETS: Final = 4
"""ReplicaSets of one gateway Deployment whose owners are read: a rollout has two."""
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
    gateway: ObservedGateway
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    findings: dict[str, Finding | None] = field(default_factory=dict)
    """By URL; None for an unreachable gateway."""
    listed: int = 0
    """Gateways in the last list."""
    empty_lists: int = 0
    """Consecutive lists without a gateway."""


class TransferPoller:
    """Owner of the polls to all gateways. `notify` is called with the key of an object whose report has changed."""

    def __init__(
        self,
        cluster: Cluster,
        notify: Callable[[Key], None],
        random: Callable[[], float],
        *,
        port: int = ADMIN_PORT,
    ) -> None:
        self._cluster = cluster
        self._port = port
        self._notify = notify
        self._random = random
        self._followed: dict[Key, _Followed] = {}
        self._slots = asyncio.Semaphore(2)
        """Bounds concurrent lists of pods."""
        self._session: aiohttp.ClientSession | None = None

    def follow(self, key: Key, gateway: ObservedGateway) -> None:
        """Poll the gateways of this Deployment from now on; another `gateway` means that they have changed."""
        followed = self._followed.get(key)
        if followed is None:
            task = asyncio.get_running_loop().create_task(self._follow(key), name=f"transfer reports of {key}")
            self._followed[key] = _Followed(task, gateway)
        elif followed.gateway != gateway:
            followed.gateway = gateway
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
            self._session = None

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
                    urls = ()
                except Exception:
                    log.exception("%s: its gateways cannot be listed", key)
                    urls = ()
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
        """URLs of the ready gateways of an object: pods that its own gateway Deployment controls."""
        selector, uid = f"{LABEL_DEPLOYMENT}={key.name},{LABEL_ROLE}={ROLE_GATEWAY}", self._followed[key].gateway.uid
        found: list[str] = []
        controlled: dict[str, bool] = {}
        async with self._slots:
            async for page in self._cluster.pages(POD, key.namespace, labelSelector=selector):
                for pod in page["items"]:
                    url = admin_url(pod, self._port)
                    if url is not None and await self._is_controlled(key, uid, pod, controlled):
                        found.append(url)
                if len(found) >= _MAX_GATEWAYS:
                    break
        return tuple(found[:_MAX_GATEWAYS])

    async def _is_controlled(self, key: Key, uid: str, pod: Mapping[str, Any], controlled: dict[str, bool]) -> bool:
        """Whether a pod's ReplicaSet belongs to the Deployment with this uid. Anybody may give a pod our labels."""
        reference = controller_of(pod)
        name = reference.get("name", "")
        if reference.get("kind") != REPLICA_SET.name or not name.startswith(f"{gateway_name(key.name)}-"):
            return False
        if name not in controlled and len(controlled) < _MAX_REPLICA_SETS:
            replica_set = await self._cluster.head(REPLICA_SET, key.namespace, name)
            controlled[name] = (
                replica_set is not None
                and replica_set["metadata"]["uid"] == reference.get("uid")
                and controller_of(replica_set).get("uid") == uid
            )
        return controlled.get(name, False)

    async def _poll(self, key: Key, url: str) -> None:
        """Poll one gateway. Never returns."""
        backoff, failures, stamp = Backoff(_RETRY_SECONDS, 60.0, self._random), 0, ""
        while True:
            try:
                stamp, finding = _read(await self._fetch(url, stamp))
            except Exception as error:
                # Whatever a gateway answers, it is polled again.
                log.debug("%s: %s does not report its transfer probes: %r", key, url, error)
                failures, stamp = failures + 1, ""
            else:
                failures = 0
                backoff.reset()
                self._store(key, url, finding)
            if failures == _MAX_FAILURES:
                self._store(key, url, None)
                self._followed[key].changed.set()
            # Outside the handler: the error's traceback would keep the answer for as long.
            await asyncio.sleep(backoff.next() if failures else _MIN_SECONDS)

    async def _fetch(self, url: str, stamp: str) -> Mapping[str, Any]:
        """Wait for a result that is newer than `stamp`, or for the end of the gateway's wait."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        query = {"after": stamp, "wait": f"{LONGEST_WAIT * (0.8 + 0.2 * self._random()):.0f}"}
        limit = aiohttp.ClientTimeout(total=LONGEST_WAIT + _ANSWER_SECONDS, connect=_ANSWER_SECONDS)
        identity = {"Accept-Encoding": "identity"}
        async with self._session.get(
            url, params=query, headers=identity, timeout=limit, allow_redirects=False
        ) as response:
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            body: Mapping[str, Any] = json.loads(await _bounded(response.content))
            return body

    def _store(self, key: Key, url: str, finding: Finding | None) -> None:
        followed = self._followed[key]
        if url not in followed.findings or followed.findings[url] != finding:
            followed.findings[url] = finding
            self._notify(key)


def _read(body: Mapping[str, Any]) -> tuple[str, Finding]:
    """The stamp and the finding of an answer; raises KeyError, TypeError or ValueError for anything else."""
    return str(body["stamp"]), Finding.read(body["finding"])


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """An answer of at most `_ANSWER_BYTES`; raises ValueError for a longer one."""
    answer = b""
    while chunk := await content.read(_ANSWER_BYTES + 1 - len(answer)):
        answer += chunk
        if len(answer) > _ANSWER_BYTES:
            raise ValueError(f"an answer of more than {_ANSWER_BYTES} bytes")
    return answer


def admin_url(pod: Mapping[str, Any], port: int = ADMIN_PORT) -> str | None:
    """URL of a gateway pod's result; None while the pod is not ready."""
    status = pod.get("status") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    address = status.get("podIP")
    if not ready or not address or pod["metadata"].get("deletionTimestamp"):
        return None
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}{RESULT_PATH}"


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
