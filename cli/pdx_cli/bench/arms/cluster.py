"""Runs one arm as an object of its own in a cluster, on free devices, and removes it; the user's object is only read.

An arm's object has a label with the name of the user's object and an annotation with the time of its last renewal. So a
later run finds what a killed one left.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pdx_api.kube.client import ApiError, MissingError
from pdx_api.kube.kinds import PDDEPLOYMENT, POD, Kind
from pdx_api.names import GROUP, ConditionType
from pdx_api.spec.types import Spec
from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.bench.arms.devices import free_devices, resource_of
from pdx_cli.bench.arms.layouts import arm_name, object_of
from pdx_cli.bench.targets import Target, of_object
from pdx_cli.errors import CommandError
from pdx_cli.sources.access import ObjectAccess

LABEL: Final = f"{GROUP}/bench"
"""Label of an arm's object: the name of the user's object."""
RENEWED: Final = f"{GROUP}/bench-renewed"
"""Annotation of an arm's object: when its run was last seen, in seconds of Unix time."""
MANAGER: Final = "pdx-bench"
NODE: Final = Kind("v1", "Node", "nodes")
_RENEW_SECONDS: Final = 15.0
STALE_SECONDS: Final = 60.0
"""After this time without a renewal, the run of an arm has ended."""
_READY_SECONDS: Final = 1800.0
_GONE_SECONDS: Final = 600.0
_POLL_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class ClusterArms:
    """The arms of one PDDeployment."""

    access: ObjectAccess
    body: Mapping[str, Any]
    """The user's object."""
    url: str | None = None
    clock: Callable[[], float] = field(default=time.time)
    """Unix time, seconds."""
    report: Callable[[str], None] = field(default=lambda _line: None)
    """Receives what an arm waits for."""

    @asynccontextmanager
    async def running(self, arm: Arm) -> AsyncIterator[Target]:
        """Create the arm's object, wait until it is ready, and delete it; raises CommandError."""
        name = arm_name(self.access.name, arm)
        renewal: asyncio.Task[None] | None = None
        try:
            await self._write(arm)
            renewal = asyncio.create_task(self._renew(arm))
            access = ObjectAccess(self.access.kube, self.access.namespace, name)
            await self._ready(access)
            target = await of_object(access, await access.object(), self.url)
            yield replace(target, arm=arm)
        finally:
            if renewal is not None:
                renewal.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await renewal
            await asyncio.shield(self.remove([name]))

    async def _write(self, arm: Arm) -> None:
        labels = {LABEL: self.access.name}
        manifest = object_of(self.body, arm, labels, {RENEWED: f"{self.clock():.0f}"})
        manifest["metadata"]["namespace"] = self.access.namespace
        assert manifest["metadata"]["name"] != self.access.name, "the user's object is never written"
        try:
            await self.access.kube.apply(PDDEPLOYMENT, manifest, uid=None, manager=MANAGER)
        except ApiError as error:
            raise CommandError(f"{arm.name} cannot be created: {str(error).rstrip('.')}.") from error

    async def _renew(self, arm: Arm) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            with contextlib.suppress(CommandError):
                await self._write(arm)

    async def _ready(self, access: ObjectAccess) -> None:
        """Wait until every engine and the gateway are ready."""
        deadline, last = asyncio.get_running_loop().time() + _READY_SECONDS, ""
        while True:
            body = await access.object()
            problem = not_ready(body)
            if not problem:
                return
            if problem != last:
                self.report(f"  {access.name} waits: {problem}")
                last = problem
            if asyncio.get_running_loop().time() > deadline:
                raise CommandError(f"{access.name} was not ready within {_READY_SECONDS:g} s: {problem}.")
            await asyncio.sleep(_POLL_SECONDS)

    async def left(self) -> list[Mapping[str, Any]]:
        """The objects of arms that exist, whoever made them; raises CommandError."""
        try:
            found = await self.access.kube.list(
                PDDEPLOYMENT, self.access.namespace, labelSelector=f"{LABEL}={self.access.name}"
            )
        except ApiError as error:
            raise CommandError(f"The arms of {self.access.name} cannot be listed: {error}.", code=2) from error
        return list(found["items"])

    async def remove(self, names: Sequence[str]) -> None:
        """Delete arms' objects, and wait until their pods have gone; raises CommandError."""
        for name in names:
            with contextlib.suppress(MissingError):
                body = await self.access.kube.get(PDDEPLOYMENT, self.access.namespace, name)
                if (body["metadata"].get("labels") or {}).get(LABEL) != self.access.name:
                    raise CommandError(f"{name} is not an arm of {self.access.name}; rename or delete it yourself.")
                uid = body["metadata"]["uid"]
                await self.access.kube.delete(PDDEPLOYMENT, self.access.namespace, name, uid=uid, foreground=True)
        deadline = asyncio.get_running_loop().time() + _GONE_SECONDS
        while [each for each in await self.left() if each["metadata"]["name"] in names]:
            if asyncio.get_running_loop().time() > deadline:
                raise CommandError(f"{' and '.join(names)} cannot be deleted; see kubectl describe.")
            await asyncio.sleep(_POLL_SECONDS)

    async def free(self, spec: Spec) -> int | None:
        """How many devices are free; None if the engines request none. Raises CommandError."""
        resource = resource_of(spec)
        if resource is None:
            return None
        try:
            nodes = (await self.access.kube.list(NODE, None))["items"]
            pods = (await self.access.kube.list(POD, None))["items"]
        except ApiError as error:
            raise CommandError(
                f"Free devices cannot be counted ({str(error).rstrip('.')}); name a number with --devices.", code=2
            ) from error
        return free_devices(nodes, pods, resource)


def stale(objects: Sequence[Mapping[str, Any]], now: float) -> tuple[list[str], list[str]]:
    """Return the names of arms whose run has ended, and of those whose run goes on. Pure."""
    ended: list[str] = []
    live: list[str] = []
    for each in objects:
        metadata = each["metadata"]
        renewed = (metadata.get("annotations") or {}).get(RENEWED, "0")
        at = float(renewed) if renewed.replace(".", "", 1).isdecimal() else 0.0
        (ended if now - at > STALE_SECONDS else live).append(str(metadata["name"]))
    return ended, live


def not_ready(body: Mapping[str, Any]) -> str:
    """Return why an object does not serve with all of its engines; empty if it does. Pure."""
    status = body.get("status") or {}
    if status.get("observedGeneration") not in (None, body["metadata"].get("generation")):
        return "its status is of an earlier generation"
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    for kind in (ConditionType.READY, ConditionType.AVAILABLE):
        found = conditions.get(kind)
        if found is not None and found.get("status") != "True":
            return str(found.get("message") or found.get("reason") or f"{kind} is {found.get('status')}").rstrip(".")
    if ConditionType.READY not in conditions:
        return "it has no condition Ready yet"
    for part in status.get("roles") or ():
        ready, desired = part.get("readyReplicas") or 0, part.get("desiredReplicas") or 0
        if ready != desired:
            return f"{ready} of {desired} {part.get('role')} engines are ready"
    return ""
