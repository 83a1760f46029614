"""Reconciles one object: plan, apply, report, whenever something about it changes, until it is gone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any, Final

from pdx_api.kube.backoff import Backoff
from pdx_api.kube.client import ApiError, Cluster, ConflictError, MissingError, UnavailableError
from pdx_api.kube.kinds import PDDEPLOYMENT
from pdx_api.names import Mode
from pdx_api.spec.types import PDDeployment
from pdx_operator.controller.applier import Applier, ApplyResult
from pdx_operator.controller.claims import Claims
from pdx_operator.controller.crd_check import CRDCheck
from pdx_operator.controller.fair_slots import FairSlots
from pdx_operator.controller.gateway_upgrades import RETRY_SECONDS, GatewayUpgrades
from pdx_operator.controller.intervals import Intervals
from pdx_operator.controller.pair_ages import PairAges
from pdx_operator.controller.pod_inspector import PodInspector
from pdx_operator.controller.status_writer import StatusWriter
from pdx_operator.controller.transfer_poller import TransferPoller
from pdx_operator.controller.write_backoff import FilteredPlan, WriteBackoff
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.event_recorder import EventRecorder
from pdx_operator.kube.resources import ChildKey, Event, Key, Snapshot, is_terminating
from pdx_operator.plan.claim import Claim, claim_on
from pdx_operator.plan.proof import Unproven, unproven
from pdx_operator.plan.reconcile_plan import Plan, plan
from pdx_operator.plan.rollout import Phase
from pdx_operator.render.gateway import Installation
from pdx_operator.status import conditions
from pdx_operator.status.facts import facts_of
from pdx_operator.status.notice import notice_in, with_notice, without_notice

log = logging.getLogger(__name__)

_WARN_AFTER: Final = 3
"""Consecutive failures from which on the log level is warning."""
REST: Final = 9.0
"""After a reconcile of a large object, no other one begins in its namespace for this many times its duration: each
write of such an object takes the API server, which serves all tenants, up to a second of CPU."""
_LONGEST_REST: Final = 30.0


@dataclass(frozen=True, slots=True)
class Context:
    """What all reconcilers share."""

    cluster: Cluster
    cache: Cache
    recorder: EventRecorder
    transfer_poller: TransferPoller
    count_reconcile: Callable[[str, float], None]
    """Called after each reconcile with its result (ok, failed or fault) and its duration in seconds."""
    installation: Installation
    claims: Claims
    gateway_upgrades: GatewayUpgrades
    crd_check: CRDCheck
    intervals: Intervals
    reconciles: FairSlots
    """Bounds concurrent reconciles."""
    large_reconciles: FairSlots
    """Bounds those of large objects: each plan and each answer of the API server contains the object, and all
    reconciles share one loop."""
    pod_lists: asyncio.Semaphore
    """Bounds concurrent lists of pods."""
    ready: Callable[[str], Awaitable[None]]
    """Returns once this operator may work in a namespace: it leads, and the cache contains all children."""
    caught_up: Callable[[], Awaitable[None]]
    """Returns once the watch of PDDeployments has been read, or after a second."""
    now: Callable[[], datetime]
    clock: Callable[[], float]
    """Monotonic, in seconds."""
    random: Callable[[], float]


class Reconciler:
    """The reconciler of one PDDeployment."""

    def __init__(self, key: Key, context: Context) -> None:
        intervals = context.intervals
        self._key = key
        self._context = context
        self._changed = asyncio.Event()
        self._spec_changed = asyncio.Event()
        self._backoff = Backoff(intervals.retry, intervals.retry_max, context.random)
        self._write_backoff = WriteBackoff(intervals, context.clock, context.random)
        self._failures = 0
        """Consecutive reconciles with a failure."""
        self._backing_off = False
        """Only a new spec may end the delay after the last reconcile."""
        self._pair_ages = PairAges(context.clock)
        self._proof_wait: float | None = None
        """Seconds until old engines need not stay any more for a transfer probe between new ones."""
        self._pod_inspector = PodInspector(context.cluster, context.pod_lists, key, intervals, context.clock)
        self._status_writer = StatusWriter(context.cluster, context.cache, key, intervals, context.clock)

    def enqueue(self, *, spec_changed: bool) -> None:
        """Reconcile soon, because something about the object has changed."""
        self._changed.set()
        if spec_changed:
            self._spec_changed.set()

    async def run(self) -> None:
        """Reconcile until the object is gone."""
        await self._context.ready(self._key.namespace)
        while True:
            await self._context.caught_up()
            large = self._context.cache.is_large(self._key)
            slots = self._context.large_reconciles if large else self._context.reconciles
            async with slots.slot(self._key.namespace):
                self._changed.clear()  # what happened during the wait is in the snapshot of this reconcile
                self._spec_changed.clear()
                began = self._context.clock()
                delay = await self._reconcile_guarded()
                if large:
                    await asyncio.sleep(min(REST * (self._context.clock() - began), _LONGEST_REST))
            if delay is None and self._key not in self._context.cache:
                self._context.transfer_poller.forget(self._key)
                self._context.claims.forget(self._key)
                self._context.gateway_upgrades.finish(self._key)
                return
            await self._wait(delay)

    async def _wait(self, delay: float | None) -> None:
        """Wait for a change, or for the delay. A burst of events causes one reconcile.

        After a reconcile that the API server answered with an error, only a new spec ends the delay. If the API server
        was unreachable, any event does: it shows that the API server is back.
        """
        try:
            async with asyncio.timeout(delay):
                await (self._spec_changed if self._backing_off else self._changed).wait()
        except TimeoutError:
            return
        try:
            async with asyncio.timeout(self._context.intervals.reconcile):
                await self._spec_changed.wait()
        except TimeoutError:
            return

    async def _reconcile_guarded(self) -> float | None:
        """Reconcile and catch every error. Returns the seconds until the next reconcile; None: after a change."""
        began, result = self._context.clock(), "failed"
        self._backing_off = True
        try:
            delay = await self.reconcile()
            self._backing_off, result = False, "ok"
        except (UnavailableError, ConflictError) as error:
            self._backing_off = error.status != 0
            delay = max(self._backoff.next(), getattr(error, "after", 0.0))
            self._log_failure(f"{error}; retry in {delay:.1f} s")
        except ApiError as error:
            delay = self._backoff.next()
            log.warning("%s: %s; retry in %.1f s", self._key, error, delay)
        except Exception:
            # A bug that one object triggers must not stop the work on other objects.
            result, delay = "fault", self._backoff.next()
            log.exception("%s: reconcile failed; retry in %.1f s", self._key, delay)
        self._context.count_reconcile(result, self._context.clock() - began)
        return delay

    def _log_failure(self, message: str) -> None:
        """Log a failure: as a warning after several consecutive ones."""
        self._failures += 1
        log.log(logging.WARNING if self._failures >= _WARN_AFTER else logging.DEBUG, "%s: %s", self._key, message)

    async def reconcile(self) -> float | None:
        """Plan, apply and report once. Returns the seconds until the next reconcile; None: after a change."""
        context = self._context
        snapshot = context.cache.snapshot(self._key)
        # Kubernetes deletes the children of a deleted object.
        if snapshot is None or is_terminating(snapshot.body):
            return None
        if context.crd_check.missing:
            await self._report_crd(snapshot, context.crd_check.missing)
            return None
        claim, notice = await context.claims.claim_on(self._key, snapshot.body)
        match claim:
            case Claim.FOREIGN:
                context.transfer_poller.forget(self._key)
                if notice and notice != notice_in(snapshot.body):
                    await self._notify_owner(snapshot, notice)
                return context.intervals.foreign
            case Claim.FREE:
                return await self._claim(snapshot)
        filtered, result = await self._plan(snapshot), ApplyResult()
        if filtered.plan.has_writes:
            if not await self._is_current(snapshot):
                return 0.0
            uid = snapshot.body["metadata"]["uid"]
            result = await Applier(context.cluster, context.cache, self._key, uid).perform(filtered.plan)
            self._record(uid, events(self._write_backoff.record(filtered.plan, result)))
            if result.error is not None:
                raise result.error
            snapshot = context.cache.snapshot(self._key)
            if snapshot is None:
                return None
            filtered = await self._plan(snapshot)
        return await self._report(snapshot, filtered, result)

    async def _claim(self, snapshot: Snapshot) -> float:
        """Become the operator of an object, before anything else is written, unless it has changed meanwhile."""
        own, before = self._context.claims.own, snapshot.body.get("status") or {}
        holder = before.get("operator") or ""
        if await self._write_whole_status(snapshot, {**without_notice(before), "operator": own}) and holder:
            text = f"{own} manages this object now; {holder} managed it before, and no longer works or was replaced."
            self._record(snapshot.body["metadata"]["uid"], [Event("TakenOver", text)])
        return 0.0

    async def _notify_owner(self, snapshot: Snapshot, notice: str) -> None:
        """Write a notice into the object of another operator, unless the object has changed meanwhile."""
        now, generation = self._context.now(), snapshot.body["metadata"]["generation"]
        status = with_notice(snapshot.body.get("status") or {}, notice, generation, now)
        written = False
        try:
            written = await self._write_whole_status(snapshot, status)
        finally:
            if not written:
                self._context.claims.withdraw(self._key)

    async def _write_whole_status(self, snapshot: Snapshot, status: dict[str, Any]) -> bool:
        """Write a status that contains another operator's; False if the object has changed meanwhile."""
        context, metadata = self._context, snapshot.body["metadata"]
        try:
            body = await context.cluster.apply_status(
                *self._key, uid=metadata["uid"], status=status, version=metadata["resourceVersion"]
            )
        except ConflictError:
            await self._is_current(snapshot)
            return False
        context.cache.upsert_object(body, own=True)
        return True

    async def _report_crd(self, snapshot: Snapshot, missing: Sequence[str]) -> None:
        """Report that the CRD is too old, and do nothing else."""
        context, metadata = self._context, snapshot.body["metadata"]
        status = conditions.crd_too_old(
            missing, snapshot.body.get("status") or {}, metadata["generation"], context.now()
        )
        if not await self._status_writer.write(snapshot, status):
            self._record_transitions(snapshot, status)

    async def _report(self, snapshot: Snapshot, filtered: FilteredPlan, result: ApplyResult) -> float | None:
        """Write the status. Returns the seconds until the next reconcile."""
        for problem in result.problems:
            self._log_failure(f"{problem.child}: {problem.message}")
        if not filtered.problems:
            self._failures = 0
        status, next_inspection = await self._status(snapshot, filtered, result)
        wait = await self._status_writer.write(snapshot, status)
        if not wait:
            self._record_transitions(snapshot, status)
        if result.stale or filtered.plan.has_writes:
            # The snapshot was stale, or the writes require more writes.
            retry: float | None = self._backoff.next()
        else:
            self._backoff.reset()
            retry = None
        upgrade = RETRY_SECONDS if filtered.plan.gateway_waits else None
        delays = (next_inspection, wait or None, retry, filtered.wait, upgrade, self._proof_wait)
        return min((delay for delay in delays if delay is not None), default=None)

    async def _status(
        self, snapshot: Snapshot, filtered: FilteredPlan, result: ApplyResult
    ) -> tuple[Mapping[str, Any], float | None]:
        """The new status, and the seconds until pods should be inspected again."""
        context, current = self._context, filtered.plan
        written = bool(result.created or result.updated or result.deleted)
        inspection, next_inspection = await self._pod_inspector.inspect(current, written=written)
        self._poll_transfer(current)
        now, transfer = context.now(), context.transfer_poller.report(self._key)
        facts = facts_of(
            snapshot, current, inspection, transfer, now, rejected=filtered.problems, reverted=filtered.reverted
        )
        return conditions.build(facts, snapshot.body.get("status") or {}, now), next_inspection

    def _poll_transfer(self, current: Plan) -> None:
        """Poll the gateways for the results of transfer probes while there are any."""
        gateway, deployment = current.workloads.gateway, current.deployment
        if (
            gateway is not None
            and gateway.ready
            and gateway.uid
            and deployment is not None
            and _probes_transfer(deployment)
        ):
            self._context.transfer_poller.follow(self._key, gateway)
        else:
            self._context.transfer_poller.forget(self._key)

    async def _plan(self, snapshot: Snapshot) -> FilteredPlan:
        context = self._context
        new = await self._held(snapshot, await self._computed_plan(snapshot))
        if new.upgrades_gateway:
            if not context.gateway_upgrades.start(self._key):
                new = new.without_gateway_upgrade()
        elif new.gateway_is_complete or new.has_no_gateway:
            context.gateway_upgrades.finish(self._key)
        return self._write_backoff.filter(new, snapshot.body["metadata"]["generation"])

    async def _computed_plan(self, snapshot: Snapshot, why: Unproven | None = None) -> Plan:
        """The plan. That of a large object is computed in a thread, so that all other reconciles go on meanwhile."""
        compute = partial(plan, snapshot, self._context.installation, why)
        return await asyncio.to_thread(compute) if self._context.cache.is_large(self._key) else compute()

    async def _held(self, snapshot: Snapshot, new: Plan) -> Plan:
        """The plan; during a rollout the one that keeps old engines until KV has moved between new ones."""
        finding, rollout, self._proof_wait = self._context.transfer_poller.report(self._key).finding, new.rollout, None
        self._pair_ages.update(new.workloads, finding)
        if rollout is None or rollout.phase is not Phase.ROLLING:
            return new
        if new.deployment is None or not _probes_transfer(new.deployment):
            return new
        ages = self._pair_ages
        why = unproven(self._key.name, rollout.revision, finding, ages.since, self._context.clock())
        if why is None:
            return new
        if why.broken is None:
            self._proof_wait = ages.until_proven(rollout.revision)
        return await self._computed_plan(snapshot, why)

    async def _is_current(self, snapshot: Snapshot) -> bool:
        """Whether the API server still has this spec for this operator: otherwise nothing is written."""
        context, cached = self._context, snapshot.body["metadata"]
        try:
            body = await context.cluster.get(PDDEPLOYMENT, self._key.namespace, self._key.name)
        except MissingError:
            context.cache.delete_object(self._key, cached["uid"])
            return False
        context.cache.upsert_object(body, own=True)
        metadata = body["metadata"]
        if metadata["uid"] != cached["uid"] or is_terminating(body):
            return False
        if claim_on(body, context.claims.own).claim is Claim.FOREIGN:
            return False
        return bool(metadata["generation"] == cached["generation"])

    def _record_transitions(self, snapshot: Snapshot, status: Mapping[str, Any]) -> None:
        changes = conditions.transitions(snapshot.body.get("status") or {}, status)
        self._record(snapshot.body["metadata"]["uid"], changes)

    def _record(self, uid: str, new: Sequence[Event]) -> None:
        for event in new:
            self._context.recorder.record(self._key, uid, event)


def _probes_transfer(deployment: PDDeployment) -> bool:
    spec = deployment.spec
    verified = spec.kv_transfer.verification.period_seconds > 0
    return spec.mode is Mode.DISAGGREGATED and spec.gateway.enabled and verified


def events(result: ApplyResult) -> list[Event]:
    """The writes as Events: one for each sort of write."""
    found: list[Event] = []
    if result.created:
        found.append(Event("Created", f"Created {_listed(result.created)}."))
    if result.updated:
        updated = ", ".join(sorted(f"{apply.key} ({apply.reason})" for apply in result.updated))
        found.append(Event("Updated", f"Updated {updated}."))
    if result.deleted:
        found.append(Event("Removed", f"Removed {_listed(result.deleted)}."))
    return found


def _listed(children: Sequence[ChildKey]) -> str:
    """Names by kind."""
    return "; ".join(
        f"{kind} {', '.join(key.name for key in keys)}"
        for kind, keys in groupby(sorted(children), lambda key: key.kind)
    )
