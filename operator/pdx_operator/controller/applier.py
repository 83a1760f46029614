"""Performs the writes of a plan, each one independently, and reports their results."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pdx_api.kube.client import ApiError, Cluster, ConflictError, FaultError, MissingError, RefusedError
from pdx_api.kube.kinds import DEPLOYMENT, KIND_OF
from pdx_api.names import FIELD_MANAGER
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.resources import ChildKey, Key
from pdx_operator.observed.workloads import observe_gateway
from pdx_operator.plan.drift import differs
from pdx_operator.plan.operations import Apply, Delete, Problem
from pdx_operator.plan.ownership import Ownership, ownership
from pdx_operator.plan.reconcile_plan import Plan

_HANDOVER_MANAGER: Final = f"{FIELD_MANAGER}-handover"
"""Field manager of a gateway's replicas until an autoscaler sets them."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A child that differs from its manifest right after it was applied: the API server or a policy changes it."""

    child: ChildKey
    path: str
    """The field."""
    version: str
    """Resource version after the write."""


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The results of a plan's writes."""

    created: tuple[ChildKey, ...] = ()
    updated: tuple[Apply, ...] = ()
    deleted: tuple[ChildKey, ...] = ()
    problems: tuple[Problem, ...] = ()
    drifts: tuple[Drift, ...] = ()
    stale: bool = False
    """Something differed from the snapshot, so the next plan may be another one."""
    error: ApiError | None = None
    """Why some writes were not completed: the API server is unavailable."""


@dataclass(frozen=True, slots=True)
class _Written:
    apply: Apply
    created: bool
    drift: Drift | None


_Result = _Written | Delete | Problem | ApiError | None


class Applier:
    """Writes the children of one object."""

    def __init__(self, cluster: Cluster, cache: Cache, key: Key, uid: str) -> None:
        self._cluster = cluster
        self._cache = cache
        self._key = key
        self._uid = uid

    async def perform(self, plan: Plan) -> ApplyResult:
        """Perform all writes that can be performed: the failure of one child does not stop the others."""
        first = [apply for apply in plan.applies if apply.kind.first]
        later = [apply for apply in plan.applies if not apply.kind.first]
        results: list[_Result] = []
        for applies in (first, later):
            results += await asyncio.gather(*(_caught(apply.key, partial(self._apply, apply)) for apply in applies))
        deletes = (*plan.deletes, *plan.deletes_of_previous)
        results += await asyncio.gather(*(_caught(delete.key, partial(self._delete, delete)) for delete in deletes))
        return _collect(results, plan.deletes)

    async def _apply(self, apply: Apply) -> _Result:
        try:
            return await self._write(apply, apply.uid)
        except ConflictError:
            return None if apply.uid else await self._write_uncached(apply)

    async def _write_uncached(self, apply: Apply) -> _Result:
        """Write a child whose name exists in the cluster but not in the cache, unless the object is foreign."""
        head = await self._cluster.head(apply.kind, self._key.namespace, apply.key.name)
        if head is not None:
            match ownership(head["metadata"], self._key.name, self._uid):
                case Ownership.FOREIGN:
                    return Problem(apply.key, "")
                case Ownership.PREVIOUS_OWNER:
                    await self._delete(Delete(apply.key, head["metadata"]["uid"]))
                    return None
        try:
            return await self._write(apply, head["metadata"]["uid"] if head else None)
        except ConflictError:
            return None

    async def _write(self, apply: Apply, uid: str | None) -> _Result:
        if uid and apply.kind is DEPLOYMENT and "replicas" not in apply.manifest["spec"]:
            await self._hand_over_replicas(apply, uid)
        body = await self._cluster.apply(apply.kind, apply.manifest, uid=uid)
        self._cache.upsert_child(apply.kind, body, own=True)
        version = body["metadata"]["resourceVersion"]
        path = differs(apply.manifest, body) or (apply.reason if version == apply.version else None)
        return _Written(apply, not uid, Drift(apply.key, path, version) if path else None)

    async def _hand_over_replicas(self, apply: Apply, uid: str) -> None:
        """Give `replicas` to another field manager before the operator stops applying the field.

        A field without an owner falls back to its default, which would leave one gateway pod.
        """
        try:
            live = await self._cluster.get(apply.kind, self._key.namespace, apply.key.name)
        except MissingError:
            return  # the precondition of the next write fails
        if not _owns_replicas(live["metadata"]):
            return
        spec = {"replicas": observe_gateway(live).replicas}
        metadata = {"namespace": self._key.namespace, "name": apply.key.name}
        manifest = {"apiVersion": apply.kind.api_version, "kind": apply.kind.name, "metadata": metadata, "spec": spec}
        await self._cluster.apply(apply.kind, manifest, uid=uid, manager=_HANDOVER_MANAGER)

    async def _delete(self, delete: Delete) -> Delete:
        kind = KIND_OF[delete.key.kind]
        await self._cluster.delete(
            kind, self._key.namespace, delete.key.name, uid=delete.uid, foreground=delete.foreground
        )
        if not delete.foreground:
            self._cache.delete_child(self._key.namespace, delete.key, delete.uid, own=True)
        return delete


def _owns_replicas(metadata: Mapping[str, Any]) -> bool:
    return any(
        (entry["manager"], entry["operation"]) == (FIELD_MANAGER, "Apply")
        and "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
        for entry in metadata.get("managedFields") or ()
    )


async def _caught(child: ChildKey, work: Callable[[], Awaitable[_Result]]) -> _Result:
    """The result of a write, or the error of the API server.

    A write to a name that does not exist creates it, so something else is missing, such as the role of a RoleBinding.
    """
    try:
        return await work()
    except (RefusedError, FaultError, MissingError) as error:
        return Problem(child, str(error))
    except ApiError as error:
        return error


def _collect(results: Sequence[_Result], deletes: Sequence[Delete]) -> ApplyResult:
    written = [result for result in results if isinstance(result, _Written)]
    return ApplyResult(
        created=tuple(result.apply.key for result in written if result.created),
        # A child that still differs in the same field was not updated.
        updated=tuple(
            result.apply
            for result in written
            if not result.created and (result.drift is None or result.drift.path != result.apply.reason)
        ),
        deleted=tuple(result.key for result in results if isinstance(result, Delete) and result in deletes),
        problems=tuple(result for result in results if isinstance(result, Problem)),
        drifts=tuple(result.drift for result in written if result.drift is not None),
        stale=any(result is None for result in results),
        error=next((result for result in results if isinstance(result, ApiError)), None),
    )
