"""Performs a decision: writes and deletes children, each on its own, and says what became of it."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.names import FIELD_MANAGER
from pdx_operator.kube.cache import ChildKey, Key, Store
from pdx_operator.kube.client import ApiError, Cluster, ConflictError, FaultError, RefusedError
from pdx_operator.kube.resources import DEPLOYMENT, KIND_OF
from pdx_operator.plan.drift import differs
from pdx_operator.plan.reconcile_plan import Change, Claim, Decision, Removal, claim

_HEIR: Final = f"{FIELD_MANAGER}-handover"
"""Field manager of the replicas that an autoscaler has not yet set."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A child that cannot be written or deleted."""

    child: ChildKey
    message: str
    """What the API server says of it; empty when an object of that name belongs to somebody else."""


@dataclass(frozen=True, slots=True)
class Denied:
    """A child that was written, and still is not as it was asked for: the API server, or a policy, has it otherwise."""

    child: ChildKey
    path: str
    """The field."""
    version: str
    """Of the object after it was written."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was performed."""

    made: tuple[ChildKey, ...] = ()
    changed: tuple[Change, ...] = ()
    removed: tuple[ChildKey, ...] = ()
    problems: tuple[Problem, ...] = ()
    denied: tuple[Denied, ...] = ()
    again: bool = False
    """Something was not as it was seen, so the next turn may decide otherwise."""
    error: ApiError | None = None
    """Why something was not even tried to the end: the API server is not reached."""


@dataclass(frozen=True, slots=True)
class _Written:
    change: Change
    made: bool
    denied: Denied | None


_Result = _Written | Removal | Problem | ApiError | None


class Applier:
    """Writes the children of one object."""

    def __init__(self, cluster: Cluster, store: Store, key: Key, uid: str) -> None:
        self._cluster = cluster
        self._store = store
        self._key = key
        self._uid = uid

    async def perform(self, decision: Decision) -> Done:
        """Do everything that can be done: one child's failure is not another's."""
        first = [change for change in decision.changes if change.kind.first]
        then = [change for change in decision.changes if not change.kind.first]
        results: list[_Result] = []
        for changes in (first, then):
            results += await asyncio.gather(*(_told(change.key, self._apply(change)) for change in changes))
        removed = (*decision.removals, *decision.leaving)
        results += await asyncio.gather(*(_told(removal.key, self._remove(removal)) for removal in removed))
        return _collect(results, decision.removals)

    async def _apply(self, change: Change) -> _Result:
        try:
            return await self._write(change, change.uid)
        except ConflictError:
            return None if change.uid else await self._write_unseen(change)

    async def _write_unseen(self, change: Change) -> _Result:
        """The watches show no object of the name, but there may be one: it is written only if it is ours."""
        head = await self._cluster.head(change.kind, self._key.namespace, change.key.name)
        if head is not None:
            match claim(head["metadata"], self._key.name, self._uid):
                case Claim.FOREIGN:
                    return Problem(change.key, "")
                case Claim.FORMER:
                    await self._remove(Removal(change.key, head["metadata"]["uid"]))
                    return None
        try:
            return await self._write(change, head["metadata"]["uid"] if head else None)
        except ConflictError:
            return None

    async def _write(self, change: Change, uid: str | None) -> _Result:
        if uid and change.kind is DEPLOYMENT and "replicas" not in change.manifest["spec"]:
            await self._hand_over(change, uid)
        body = await self._cluster.apply(change.kind, change.manifest, uid=uid)
        self._store.put_child(change.kind, body, own=True)
        version = body["metadata"]["resourceVersion"]
        path = differs(change.manifest, body) or (change.reason if version == change.version else None)
        return _Written(change, not uid, Denied(change.key, path, version) if path else None)

    async def _hand_over(self, change: Change, uid: str) -> None:
        """Give the number of replicas to another field manager before it is left out of what is applied.

        A field that nobody owns any more falls back to its default, and of a gateway one replica would be left.
        """
        live = await self._cluster.get(change.kind, self._key.namespace, change.key.name)
        if not _owns_replicas(live["metadata"]):
            return
        spec = {"replicas": live["spec"]["replicas"]}
        metadata = {"namespace": self._key.namespace, "name": change.key.name}
        manifest = {"apiVersion": change.kind.api_version, "kind": change.kind.name, "metadata": metadata, "spec": spec}
        await self._cluster.apply(change.kind, manifest, uid=uid, manager=_HEIR)

    async def _remove(self, removal: Removal) -> Removal:
        kind = KIND_OF[removal.key.kind]
        await self._cluster.delete(kind, self._key.namespace, removal.key.name, uid=removal.uid)
        self._store.drop_child(self._key.namespace, removal.key, removal.uid, own=True)
        return removal


def _owns_replicas(metadata: Mapping[str, Any]) -> bool:
    return any(
        (entry["manager"], entry["operation"]) == (FIELD_MANAGER, "Apply")
        and "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
        for entry in metadata.get("managedFields") or ()
    )


async def _told(child: ChildKey, work: Awaitable[_Result]) -> _Result:
    """The result, or what the API server has against it."""
    try:
        return await work
    except (RefusedError, FaultError) as error:
        return Problem(child, str(error))
    except ApiError as error:
        return error


def _collect(results: Sequence[_Result], removals: Sequence[Removal]) -> Done:
    written = [result for result in results if isinstance(result, _Written)]
    return Done(
        made=tuple(result.change.key for result in written if result.made),
        # What is as wrong as before was not changed.
        changed=tuple(
            result.change
            for result in written
            if not result.made and (result.denied is None or result.denied.path != result.change.reason)
        ),
        removed=tuple(result.key for result in results if isinstance(result, Removal) and result in removals),
        problems=tuple(result for result in results if isinstance(result, Problem)),
        denied=tuple(result.denied for result in written if result.denied is not None),
        again=any(result is None for result in results),
        error=next((result for result in results if isinstance(result, ApiError)), None),
    )
