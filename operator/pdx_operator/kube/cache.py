"""Every PDDeployment and its children as the watches last showed them, trimmed and compressed.

It is only a cache: the operator may lose it at any time. Objects are kept as compressed JSON, because thousands of them
are idle while a few are reconciled. The API server's answer to a write is stored at once, so that the next reconcile
sees the operator's own writes; an older version that a watch delivers later is ignored.
"""

import json
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Self

from pdx_api.kube.kinds import DEPLOYMENT, Kind
from pdx_api.names import KIND, LABEL_DEPLOYMENT
from pdx_operator.kube.object_shape import fault_of, require_identity, stub, wrong_metadata
from pdx_operator.kube.resources import OBJECT_BYTES, Body, ChildKey, Key, Snapshot, controller_of

_UNREAD: Final = ("managedFields", "selfLink")
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_CHILD_BYTES: Final = 2**20
_FOREIGN_BYTES: Final = 32 * 1024
_COSTLY_BYTES: Final = 32 * 1024
"""A larger PDDeployment takes the operator's loop for tens of milliseconds at each plan."""
_Location = tuple[str, ChildKey]
"""A child's namespace, and its key."""


@dataclass(frozen=True, slots=True)
class Record:
    """The latest version of an object."""

    uid: str
    version: int
    generation: int
    packed: bytes
    large: bool = False
    """Whether the object takes long to be planned, or is even too large to be kept."""
    unusable: bool = False
    """Whether only its identity is kept: the object is too large, too deep or odd."""
    write: int = 0
    """The number of the operator's own write that returned this version; 0 for a version from a list or a watch."""

    @classmethod
    def of(cls, body: Body, write: int = 0) -> Self:
        """Pack an object. Its kind decides whether its status is kept. Raises UnusableObjectError."""
        require_identity(body)
        metadata, fault = body["metadata"], fault_of(body)
        text = _text(stub(body, fault) if fault else trimmed(body))
        large, unusable = len(text) > _COSTLY_BYTES, bool(fault)
        if not fault and len(text) > _limit(body):
            text, unusable = _text(stub(body, _too_large(len(text)))), True
        generation = 0 if "generation" in wrong_metadata(metadata) else metadata.get("generation", 0)
        return cls(
            metadata["uid"],
            int(metadata["resourceVersion"]),
            generation,
            zlib.compress(text, 1),
            large=large,
            unusable=unusable,
            write=write,
        )

    def body(self) -> dict[str, Any]:
        """Unpack the object."""
        return json.loads(zlib.decompress(self.packed))  # type: ignore[no-any-return]


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
        self.writes = 0
        """Own writes so far."""

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

    def upsert_object(self, body: Body, *, own: bool = False, listed: int | None = None) -> None:
        """Store a PDDeployment from a watch, or (`own`) from the API server's answer to the operator.

        `listed`: from a list; the number of own writes when it began. Raises UnusableObjectError.
        """
        require_identity(body)
        self.writes += own
        key = Key(body["metadata"]["namespace"], body["metadata"]["name"])
        previous = self._objects.get(key)
        if not _replaces(body, previous, listed):
            return
        record = self._objects[key] = self._record(body, own)
        self._observe(key, record.body() if record.unusable else body)
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

    def upsert_child(self, kind: Kind, body: Body, *, own: bool = False, listed: int | None = None) -> None:
        """Store a child; `own` and `listed` as for `upsert_object`."""
        require_identity(body)
        metadata = body["metadata"]
        labels = {} if "labels" in wrong_metadata(metadata) else metadata.get("labels") or {}
        name = labels.get(LABEL_DEPLOYMENT, "")
        key, child = Key(metadata["namespace"], name), ChildKey(kind.name, metadata["name"])
        location = (key.namespace, child)
        previous_owner = self._owners.get(location, key)
        if previous_owner != key:
            self._remove(location)
            self._notify(previous_owner, False)
        self.writes += own
        if not _replaces(body, self._children.get(key, {}).get(child), listed):
            return
        record = self._record({**body, "kind": kind.name}, own)
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

    def remove_objects(self, gone: Mapping[Key, int]) -> None:
        """Remove PDDeployments, by key and the version that they had before a list without them began."""
        for key, version in gone.items():
            record = self._objects.get(key)
            if record is not None and record.version == version:
                self.delete_object(key, record.uid)

    def version_of(self, key: Key) -> int:
        """The resource version of a PDDeployment; 0 when it is not cached."""
        record = self._objects.get(key)
        return record.version if record is not None else 0

    def is_large(self, key: Key) -> bool:
        """Whether a PDDeployment takes long to be planned, or is even too large to be kept."""
        record = self._objects.get(key)
        return record is not None and record.large

    def keys(self) -> Collection[Key]:
        """Every PDDeployment."""
        return self._objects.keys()

    def _record(self, body: Body, own: bool) -> Record:
        return Record.of(body, self.writes if own else 0)

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


def _replaces(body: Body, other: Record | None, listed: int | None) -> bool:
    """Whether this version of an object takes the place of another one. Versions grow over all objects of a cluster.

    The watch also shows each version that the operator has written itself. A list that began after own write number
    `listed` shows the present, also if its versions are older: then the storage of the API server has been restored
    from a backup.
    """
    version = int(body["metadata"]["resourceVersion"])
    if other is None or listed is None or other.write > listed:
        return other is None or version > other.version
    return version != other.version


def _text(body: Body) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _limit(body: Body) -> int:
    """Bytes up to which an object is kept. Children of nobody are only kept so that their names are not taken."""
    if body.get("kind") == KIND:
        return OBJECT_BYTES
    return _CHILD_BYTES if controller_of(body).get("kind") == KIND else _FOREIGN_BYTES


def _too_large(size: int) -> str:
    return f"the object has {size // 1024} KiB; write one of at most {OBJECT_BYTES // 1024} KiB"


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
