"""Performs a decision: writes and deletes children, each on its own, and says what became of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pdx_operator.cluster import ApiError, Cluster, ConflictError, RefusedError
from pdx_operator.decide import Change, Claim, Decision, Removal, claim
from pdx_operator.kinds import KIND_OF
from pdx_operator.store import ChildKey, Key, Store


@dataclass(frozen=True, slots=True)
class Problem:
    """A child that cannot be written."""

    child: ChildKey
    message: str
    """What the API server says of it; empty when an object of that name belongs to somebody else."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was performed."""

    made: tuple[ChildKey, ...] = ()
    changed: tuple[Change, ...] = ()
    removed: tuple[ChildKey, ...] = ()
    problems: tuple[Problem, ...] = ()
    again: bool = False
    """Something was not as it was seen, so the next turn may decide otherwise."""


@dataclass(frozen=True, slots=True)
class _Made:
    change: Change


class Executor:
    """Writes the children of one object."""

    def __init__(self, cluster: Cluster, store: Store, key: Key, uid: str) -> None:
        self._cluster = cluster
        self._store = store
        self._key = key
        self._uid = uid

    async def perform(self, decision: Decision) -> Done:
        """Do everything that can be done; raises the ApiError of a request that may succeed later, after the others."""
        first = [change for change in decision.changes if change.kind.first]
        then = [change for change in decision.changes if not change.kind.first]
        results = await _all([self._apply(change) for change in first])
        results += await _all([self._apply(change) for change in then])
        removed = (*decision.removals, *decision.leaving)
        results += await _all([self._remove(removal) for removal in removed])
        for error in results:
            if isinstance(error, BaseException):
                raise error
        return _collect(results, decision.removals)

    async def _apply(self, change: Change) -> "_Made | Change | Problem | None":
        try:
            return await self._write(change, change.uid)
        except ConflictError:
            return None if change.uid else await self._write_unseen(change)

    async def _write_unseen(self, change: Change) -> "_Made | Change | Problem | None":
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

    async def _write(self, change: Change, uid: str | None) -> "_Made | Change | Problem":
        try:
            body = await self._cluster.apply(change.kind, change.manifest, uid=uid)
        except RefusedError as error:
            return Problem(change.key, str(error))
        self._store.put_child(change.kind, body, own=True)
        return change if uid else _Made(change)

    async def _remove(self, removal: Removal) -> Removal:
        kind = KIND_OF[removal.key.kind]
        await self._cluster.delete(kind, self._key.namespace, removal.key.name, uid=removal.uid)
        self._store.drop_child(self._key.namespace, removal.key, removal.uid, own=True)
        return removal


async def _all(work: Sequence[object]) -> list[object]:
    """Await everything; errors of the API server are results, because one child's failure is not another's."""
    results = await asyncio.gather(*work, return_exceptions=True)  # type: ignore[call-overload]
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, ApiError):
            raise result
    return list(results)


def _collect(results: Sequence[object], removals: Sequence[Removal]) -> Done:
    return Done(
        made=tuple(result.change.key for result in results if isinstance(result, _Made)),
        changed=tuple(result for result in results if isinstance(result, Change)),
        removed=tuple(result.key for result in results if isinstance(result, Removal) and result in removals),
        problems=tuple(result for result in results if isinstance(result, Problem)),
        again=any(result is None for result in results),
    )
