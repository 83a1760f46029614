"""Which operator of an installation works: the one that holds its Lease.

The election is `kubernetes.aio.leaderelection`; this module gives it a lock whose requests have deadlines and whose
errors are results. A candidate compares renewals by its own clock, so the clocks of nodes may differ.
"""

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.baselock import BaseLock

from pdx_api.kube.client import ApiError, Cluster, Json, MissingError
from pdx_api.kube.kinds import LEASE

_CANDIDATE_SECONDS: Final = 2.0
"""Between two reads of a candidate. The holder renews every third of the Lease's duration."""
_MARGIN: Final = 0.9
"""Part of the Lease's duration after which its holder writes nothing more: a write takes time to arrive."""


class LeaseLostError(Exception):
    """Another operator may hold the Lease. This one must end."""


class Leadership:
    """The Lease of one installation, and whether this operator holds it."""

    def __init__(self, lock: "LeaseLock") -> None:
        self._lock = lock
        self.leading = asyncio.Event()
        """Set once this operator holds the Lease."""

    def holds(self) -> bool:
        """Whether this operator may write now: its last renewal is recent enough."""
        if not self.leading.is_set() or self._lock.renewed is None:
            return False
        return self._lock.clock() - self._lock.renewed < _MARGIN * self._lock.seconds

    async def run(self) -> None:
        """Wait for the Lease, and renew it. Raises LeaseLostError when it cannot be renewed."""
        seconds = self._lock.seconds
        config = Config(
            self._lock,
            lease_duration=seconds,
            renew_deadline=seconds * 2 / 3,
            retry_period=seconds / 3,
            onstarted_leading=self._start,
            onstopped_leading=None,  # type: ignore[arg-type]
        )
        await _Election(config).run()
        raise LeaseLostError(f"the Lease {self._lock.namespace}/{self._lock.name} could not be renewed")

    async def release(self) -> None:
        """Let another operator take the Lease at once."""
        if self.holds():
            self.leading.clear()
            await self._lock.release()

    async def _start(self) -> None:
        self.leading.set()


class _Election(LeaderElection):
    """A candidate reads the Lease more often than its holder renews it, so that it takes over soon."""

    async def acquire(self) -> bool:
        while not await self.try_acquire_or_renew():  # noqa: ASYNC110
            await asyncio.sleep(min(_CANDIDATE_SECONDS, self.election_config.retry_period))
        return True


class LeaseLock(BaseLock):
    """The Lease as the election reads and writes it. `identity` is unique for each process."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        *,
        identity: str,
        seconds: int,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        super().__init__(name, namespace, identity)
        self._cluster = cluster
        self.seconds = seconds
        self.clock = clock
        self._now = now
        self._live: Json = {}
        self.renewed: float | None = None
        """When the last successful write began, by `clock`."""

    async def get(self, name: str, namespace: str) -> tuple[bool, Any]:
        """The record; or False and an error, of which the election reads the code 404 only."""
        try:
            self._live = await self._cluster.get(LEASE, namespace, name)
        except ApiError as error:
            failure = ApiException(status=error.status, reason=str(error))
            failure.body = json.dumps({"code": 404 if isinstance(error, MissingError) else error.status})
            return False, failure
        spec = self._live.get("spec") or {}
        return True, LeaderElectionRecord(
            spec.get("holderIdentity") or None,
            str(spec.get("leaseDurationSeconds") or "") or None,
            spec.get("acquireTime"),
            spec.get("renewTime"),
        )

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        """Create the Lease; False if it exists, or if the request fails."""
        metadata = {"name": name, "namespace": namespace}
        body = {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata, "spec": self._spec({})}
        return await self._write(self._cluster.create(LEASE, namespace, body, fenced=False))

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        """Take or renew the Lease; False if another operator has written it, or if the request fails."""
        body = {**self._live, "spec": self._spec(self._live.get("spec") or {})}
        return await self._write(self._cluster.replace(LEASE, namespace, name, body, fenced=False))

    async def release(self) -> None:
        """Write a Lease without holder. An error is ignored: the Lease expires."""
        spec = {**(self._live.get("spec") or {}), "holderIdentity": ""}
        try:
            # The version of the last read, before the last renewal, is stale.
            live = await self._cluster.get(LEASE, self.namespace, self.name)
            if (live.get("spec") or {}).get("holderIdentity") == self.identity:
                body = {**live, "spec": spec}
                await self._cluster.replace(LEASE, self.namespace, self.name, body, fenced=False)
        except ApiError:
            return

    async def _write(self, request: Any) -> bool:
        began = self.clock()
        try:
            await request
        except ApiError:
            return False
        self.renewed = began
        return True

    def _spec(self, live: Json) -> Json:
        now = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = live.get("holderIdentity") == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.seconds,
            "acquireTime": live.get("acquireTime", now) if mine else now,
            "renewTime": now,
            "leaseTransitions": (live.get("leaseTransitions") or 0) + (0 if mine or not live else 1),
        }
