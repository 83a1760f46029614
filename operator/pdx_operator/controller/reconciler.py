"""One object's loop: woken, it observes, decides, performs and reports, until there is nothing left to do."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Final

from pdx_api.names import Mode
from pdx_api.spec.types import PDDeployment
from pdx_operator.app.metrics import Metrics
from pdx_operator.app.settings import Settings
from pdx_operator.controller.applier import Applier, Done
from pdx_operator.controller.pod_inspector import PodInspector
from pdx_operator.controller.status_writer import Reporter, status_of
from pdx_operator.controller.transfer_poller import TransferPoller
from pdx_operator.controller.write_backoff import Sifted, WriteBackoff
from pdx_operator.kube.backoff import Backoff
from pdx_operator.kube.cache import ChildKey, Key, Snapshot, Store
from pdx_operator.kube.client import ApiError, AwayError, Cluster, ConflictError, MissingError
from pdx_operator.kube.event_recorder import EventRecorder, Step
from pdx_operator.kube.resources import PDDEPLOYMENT
from pdx_operator.plan.reconcile_plan import Decision, decide, is_leaving
from pdx_operator.status.conditions import transitions

log = logging.getLogger(__name__)

_PATIENCE: Final = 3
"""Failures in a row after which the log says so aloud."""


@dataclass(frozen=True, slots=True)
class Context:
    """What all loops share."""

    cluster: Cluster
    store: Store
    recorder: EventRecorder
    metrics: Metrics
    settings: Settings
    canaries: TransferPoller
    turns: asyncio.Semaphore
    """One for each turn that may run."""
    looking: asyncio.Semaphore
    """One for each list of pods that may be open."""
    synced: asyncio.Event
    """Set once the store has seen everything that exists."""
    now: Callable[[], datetime]
    clock: Callable[[], float]
    """Monotonic, in seconds."""
    random: Callable[[], float]


class Loop:
    """The loop of one PDDeployment."""

    def __init__(self, key: Key, context: Context) -> None:
        pace = context.settings.pace
        self._key = key
        self._context = context
        self._woken = asyncio.Event()
        self._urgent = asyncio.Event()
        self._backoff = Backoff(pace.retry, pace.retry_most, context.random)
        self._write_backoff = WriteBackoff(pace, context.clock, context.random)
        self._failures = 0
        """Turns in a row in which something failed."""
        self._patient = False
        """The delay after the last turn is waited out, whatever happens."""
        self._pod_inspector = PodInspector(context.cluster, context.looking, key, pace, context.clock)
        self._reporter = Reporter(context.cluster, context.store, key, pace, context.clock)

    def wake(self, *, urgent: bool) -> None:
        """Something about the object is new; `urgent` when it is what the user asks for."""
        self._woken.set()
        if urgent:
            self._urgent.set()

    async def run(self) -> None:
        """Until the object is gone."""
        await self._context.synced.wait()
        while True:
            self._woken.clear()
            self._urgent.clear()
            async with self._context.turns:
                delay = await self._guarded()
            if delay is None and self._key not in self._context.store:
                self._context.canaries.forget(self._key)
                return
            await self._rest(delay)

    async def _rest(self, delay: float | None) -> None:
        """Sleep until the delay is over or something happens; a burst of events is one awakening.

        After a turn that the API server would not let end only a new spec is a reason not to wait. One that it was not
        there for is different: an event says that it is there again.
        """
        try:
            async with asyncio.timeout(delay):
                await (self._urgent if self._patient else self._woken).wait()
        except TimeoutError:
            return
        try:
            async with asyncio.timeout(self._context.settings.pace.turn):
                await self._urgent.wait()
        except TimeoutError:
            return

    async def _guarded(self) -> float | None:
        """A turn; whatever goes wrong in it is this object's matter alone. Seconds to the next, None for no next."""
        began, result = self._context.clock(), "failed"
        self._patient = True
        try:
            delay = await self._turn()
            self._patient, result = False, "ok"
        except (AwayError, ConflictError) as error:
            self._patient = error.status != 0
            delay = max(self._backoff.next(), getattr(error, "after", 0.0))
            self._complain(f"{error}; again in {delay:.1f} s")
        except ApiError as error:
            delay = self._backoff.next()
            log.warning("%s: %s; again in %.1f s", self._key, error, delay)
        except Exception:
            # A fault in the operator itself must not stop the work on other objects.
            result, delay = "fault", self._backoff.next()
            log.exception("%s: the turn failed; again in %.1f s", self._key, delay)
        self._context.metrics.count_turn(result, self._context.clock() - began)
        return delay

    def _complain(self, words: str) -> None:
        """Log what failed: loudly once it has failed several times."""
        self._failures += 1
        log.log(logging.WARNING if self._failures >= _PATIENCE else logging.DEBUG, "%s: %s", self._key, words)

    async def _turn(self) -> float | None:
        context = self._context
        snapshot = context.store.snapshot(self._key)
        if snapshot is None or is_leaving(snapshot.body):
            return None
        sifted, done = self._decide(snapshot), Done()
        if sifted.decision.writes:
            if not await self._confirm(snapshot):
                return 0.0
            uid = snapshot.body["metadata"]["uid"]
            done = await Applier(context.cluster, context.store, self._key, uid).perform(sifted.decision)
            self._tell(uid, self._write_backoff.note(sifted.decision, done))
            if done.error is not None:
                raise done.error
            snapshot = context.store.snapshot(self._key)
            if snapshot is None:
                return None
            sifted = self._decide(snapshot)
        return await self._conclude(snapshot, sifted, done)

    async def _conclude(self, snapshot: Snapshot, sifted: Sifted, done: Done) -> float | None:
        """Report, and say when to turn again if nothing happens."""
        context, decision = self._context, sifted.decision
        for problem in done.problems:
            self._complain(f"{problem.child}: {problem.message}")
        if not sifted.problems:
            self._failures = 0
        written = bool(done.made or done.changed or done.removed)
        look, next_look = await self._pod_inspector.look(decision, written=written)
        self._follow(decision)
        status = status_of(snapshot, sifted, look, context.canaries.of(self._key), context.now())
        wait = await self._reporter.write(snapshot, status)
        if not wait:
            for told in transitions(snapshot.body.get("status") or {}, status):
                step = Step(told.reason, told.message, warning=told.warning)
                context.recorder.post(self._key, snapshot.body["metadata"]["uid"], step)
        if done.again or decision.writes:
            # Something was not as it was seen, or what was written calls for more.
            retry: float | None = self._backoff.next()
        else:
            self._backoff.reset()
            retry = None
        return min(
            (delay for delay in (next_look, wait or None, retry, sifted.wait) if delay is not None), default=None
        )

    def _follow(self, decision: Decision) -> None:
        """Have gateways asked for their canaries while there are any."""
        gateway = decision.gateway
        if gateway is not None and gateway.ready and decision.deployment is not None and _tries_kv(decision.deployment):
            self._context.canaries.follow(self._key, gateway)
        else:
            self._context.canaries.forget(self._key)

    def _decide(self, snapshot: Snapshot) -> Sifted:
        settings = self._context.settings
        decision = decide(
            snapshot, gateway_image=settings.gateway_image, operator_namespace=settings.operator_namespace
        )
        return self._write_backoff.sift(decision, snapshot.body["metadata"]["generation"])

    async def _confirm(self, snapshot: Snapshot) -> bool:
        """Ask whether the object is still what was seen: nothing is written for one that has gone or changed."""
        context, seen = self._context, snapshot.body["metadata"]
        try:
            body = await context.cluster.get(PDDEPLOYMENT, self._key.namespace, self._key.name)
        except MissingError:
            context.store.drop_object(self._key, seen["uid"])
            return False
        context.store.put_object(body, own=True)
        metadata = body["metadata"]
        if metadata["uid"] != seen["uid"] or is_leaving(body):
            return False
        return bool(metadata["generation"] == seen["generation"])

    def _tell(self, uid: str, done: Done) -> None:
        for step in steps(done):
            self._context.recorder.post(self._key, uid, step)


def _tries_kv(deployment: PDDeployment) -> bool:
    spec = deployment.spec
    return spec.mode is Mode.DISAGGREGATED and spec.routing.canary_seconds > 0


def steps(done: Done) -> list[Step]:
    """What was performed, as Events: one for each sort of thing."""
    told: list[Step] = []
    if done.made:
        told.append(Step("Created", f"Created {_listed(done.made)}."))
    if done.changed:
        changed = ", ".join(sorted(f"{change.key} ({change.reason})" for change in done.changed))
        told.append(Step("Updated", f"Updated {changed}."))
    if done.removed:
        told.append(Step("Removed", f"Removed {_listed(done.removed)}."))
    return told


def _listed(children: Sequence[ChildKey]) -> str:
    """Names by kind."""
    return "; ".join(
        f"{kind} {', '.join(key.name for key in keys)}"
        for kind, keys in groupby(sorted(children), lambda key: key.kind)
    )
