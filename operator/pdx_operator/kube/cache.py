"""Every PDDeployment and its children as the watches last showed them, trimmed and compressed.

It is only a cache: the operator may lose it at any time. Objects are kept as compressed JSON, because thousands of them
are idle while a few are reconciled. The API server's answer to a write is stored at once, so that the next reconcile
sees the operator's own writes; an older version that a watch delivers later is ignored.
"""

import json
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Self

from pdx_api.names import LABEL_DEPLOYMENT
from pdx_operator.kube.resources import DEPLOYMENT, Body, ChildKey, Key, Kind, Snapshot

_UNREAD: Final = ("managedFields", "selfLink")
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_Location = tuple[str, ChildKey]
"""A child's namespace, and its key."""


@dataclass(frozen=True, slots=True)
class Record:
    """The latest version of an object."""

    uid: str
    version: int
    generation: int
    packed: bytes

    @classmethod
    def of(cls, body: Body) -> Self:
        """Pack an object. Its kind decides whether its status is kept."""
        metadata = body["metadata"]
        packed = zlib.compress(json.dumps(trimmed(body), separators=(",", ":")).encode(), 1)
        return cls(metadata["uid"], int(metadata["resourceVersion"]), metadata.get("generation", 0), packed)

    def body(self) -> dict[str, Any]:
        """Unpack the object."""
        return json.loads(zlib.decompress(self.packed))  # type: ignore[no-any-return]

    def supersedes(self, other: "Record | None") -> bool:
        """Whether this version is newer. Versions are numbers that grow over all objects of a cluster."""
        return other is None or self.version > other.version


class Cache:
    """Owner of the records.

    `notify` is called with the key of an object that has changed, or whose children have, and with whether its spec is
    new. `observe` is called with every new version of a PDDeployment, and with None when one is deleted.
    """

    def __init__(
        self,
        notify: Callable[[Key, bool], None],
        observe: Callable[[Key, Body | None], None] = lambda key, body: None,
    ) -> None:
        self._notify = notify
        self._observe = observe
        self._objects: dict[Key, Record] = {}
        self._children: dict[Key, dict[ChildKey, Record]] = {}
        self._owners: dict[_Location, Key] = {}

    def __repr__(self) -> str:
        children = sum(map(len, self._children.values()))
        return f"<Cache: {len(self._objects)} objects, {children} children>"

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def snapshot(self, key: Key) -> Snapshot | None:
        """The object and its children; None when the object does not exist."""
        record = self._objects.get(key)
        if record is None:
            return None
        children = {child: record.body() for child, record in self._children.get(key, {}).items()}
        return Snapshot(record.body(), MappingProxyType(children))

    def upsert_object(self, body: Body, *, own: bool = False) -> None:
        """Store a PDDeployment from a watch, or (`own`) from the API server's answer to the operator."""
        key, record = Key(body["metadata"]["namespace"], body["metadata"]["name"]), Record.of(body)
        previous = self._objects.get(key)
        if record.supersedes(previous):
            self._objects[key] = record
            self._observe(key, body)
            # The answer to the operator's own write may be the first to show a new spec from a user.
            if previous is None or (previous.uid, previous.generation) != (record.uid, record.generation):
                self._notify(key, True)
            else:
                self._notify_unless(own, key)

    def delete_object(self, key: Key, uid: str) -> None:
        """Remove the PDDeployment with this uid; another object of the same name may exist."""
        record = self._objects.get(key)
        if record is not None and record.uid == uid:
            del self._objects[key]
            self._observe(key, None)
            self._notify(key, True)

    def upsert_child(self, kind: Kind, body: Body, *, own: bool = False) -> None:
        """Store a child from a watch, or (`own`) from the API server's answer to the operator."""
        metadata = body["metadata"]
        name = (metadata.get("labels") or {}).get(LABEL_DEPLOYMENT, "")
        key, child = Key(metadata["namespace"], name), ChildKey(kind.name, metadata["name"])
        location = (key.namespace, child)
        previous_owner = self._owners.get(location, key)
        if previous_owner != key:
            self._remove(location)
            self._notify(previous_owner, False)
        record = Record.of({**body, "kind": kind.name})
        if record.supersedes(self._children.get(key, {}).get(child)):
            self._owners[location] = key
            self._children.setdefault(key, {})[child] = record
            self._notify_unless(own, key)

    def delete_child(self, namespace: str, child: ChildKey, uid: str = "", *, own: bool = False) -> None:
        """Remove a child. With `uid`, only that one: another child of the same name may exist."""
        location = (namespace, child)
        key = self._owners.get(location)
        if key is None or (uid and self._children[key][child].uid != uid):
            return
        self._remove(location)
        self._notify_unless(own, key)

    def retain_children(self, kind: Kind, namespace: str | None, existing: Collection[tuple[str, str]]) -> None:
        """Remove all children of a kind that a complete list (of namespaces and names) does not contain."""
        gone = [
            (where, child)
            for where, child in self._owners
            if child.kind == kind.name and namespace in (None, where) and (where, child.name) not in existing
        ]
        for where, child in gone:
            self.delete_child(where, child)

    def keys(self) -> Collection[Key]:
        """Every PDDeployment."""
        return self._objects.keys()

    def _remove(self, location: _Location) -> None:
        key = self._owners.pop(location)
        children = self._children[key]
        del children[location[1]]
        if not children:
            del self._children[key]

    def _notify_unless(self, own: bool, key: Key) -> None:
        """Report a change of something else than the spec, unless the operator itself has made it."""
        if not own:
            self._notify(key, False)


def trimmed(body: Body) -> dict[str, Any]:
    """The object without unused fields: field ownership, and the status of all children but Deployments."""
    metadata = {name: value for name, value in body["metadata"].items() if name not in _UNREAD}
    annotations = metadata.get("annotations") or {}
    if _LAST_APPLIED in annotations:
        metadata["annotations"] = {name: value for name, value in annotations.items() if name != _LAST_APPLIED}
    rest = {name: value for name, value in body.items() if name != "metadata"}
    if body.get("kind") not in (DEPLOYMENT.name, "PDDeployment"):
        rest.pop("status", None)
    return {**rest, "metadata": metadata}
