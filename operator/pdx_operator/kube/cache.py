"""What the watches have seen: every PDDeployment and its children, trimmed and packed.

A cache and nothing more: the operator may lose it at any time. An object is kept as compressed JSON, because thousands
of them are asleep while a few are being worked on. What the API server answered to a write is put in at once, so that
the next turn sees its own writes; an older version that a watch brings later is ignored.
"""

import json
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from pdx_api.names import LABEL_DEPLOYMENT
from pdx_operator.kube.resources import DEPLOYMENT, Kind
from pdx_operator.observed.condition_summary import Standing

Body = Mapping[str, Any]

_UNREAD: Final = ("managedFields", "selfLink")
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


class Key(NamedTuple):
    """A PDDeployment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ChildKey(NamedTuple):
    """A child among those of its PDDeployment."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Record:
    """An object as it was last seen."""

    uid: str
    version: int
    generation: int
    packed: bytes

    @classmethod
    def of(cls, body: Body) -> Self:
        """Pack an object; its kind decides whether its status is kept."""
        metadata = body["metadata"]
        packed = zlib.compress(json.dumps(trimmed(body), separators=(",", ":")).encode(), 1)
        return cls(metadata["uid"], int(metadata["resourceVersion"]), metadata.get("generation", 0), packed)

    def body(self) -> dict[str, Any]:
        """The object itself."""
        return json.loads(zlib.decompress(self.packed))  # type: ignore[no-any-return]

    def supersedes(self, other: "Record | None") -> bool:
        """Whether this says something newer. Versions are numbers that grow over all objects of a cluster."""
        return other is None or self.version > other.version


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One PDDeployment and its children at one moment."""

    body: Body
    children: Mapping[ChildKey, Body]


class Store:
    """Owner of the records.

    `wake` is called with the key of an object about which something new was learnt, and whether its spec is new.
    """

    def __init__(self, wake: Callable[[Key, bool], None]) -> None:
        self._wake = wake
        self._objects: dict[Key, Record] = {}
        self._children: dict[Key, dict[ChildKey, Record]] = {}
        self._owners: dict[tuple[str, ChildKey], Key] = {}
        self.standings: dict[Key, Standing] = {}
        """What the status of each object says: known without unpacking it."""

    def __repr__(self) -> str:
        children = sum(map(len, self._children.values()))
        return f"<Store: {len(self._objects)} objects, {children} children>"

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def snapshot(self, key: Key) -> Snapshot | None:
        """What is known of an object; None when there is none."""
        record = self._objects.get(key)
        if record is None:
            return None
        children = {child: record.body() for child, record in self._children.get(key, {}).items()}
        return Snapshot(record.body(), MappingProxyType(children))

    def put_object(self, body: Body, *, own: bool = False) -> None:
        """A PDDeployment as a watch brought it, or (`own`) as the API server answered it to the operator."""
        key, record = Key(body["metadata"]["namespace"], body["metadata"]["name"]), Record.of(body)
        former = self._objects.get(key)
        if record.supersedes(former):
            self._objects[key] = record
            self.standings[key] = Standing.of(body)
            # An answer to the operator's own write may be the first to show what a user has written meanwhile.
            if former is None or (former.uid, former.generation) != (record.uid, record.generation):
                self._wake(key, True)
            else:
                self._tell(key, own)

    def drop_object(self, key: Key, uid: str) -> None:
        """The PDDeployment with this uid is gone; another of the same name may exist."""
        record = self._objects.get(key)
        if record is not None and record.uid == uid:
            del self._objects[key], self.standings[key]
            self._wake(key, True)

    def put_child(self, kind: Kind, body: Body, *, own: bool = False) -> None:
        """A child as a watch brought it, or as the API server answered it to the operator."""
        metadata = body["metadata"]
        name = (metadata.get("labels") or {}).get(LABEL_DEPLOYMENT, "")
        key, child = Key(metadata["namespace"], name), ChildKey(kind.name, metadata["name"])
        place = (key.namespace, child)
        former = self._owners.get(place, key)
        if former != key:
            self._forget(place)
            self._wake(former, False)
        record = Record.of({**body, "kind": kind.name})
        if record.supersedes(self._children.get(key, {}).get(child)):
            self._owners[place] = key
            self._children.setdefault(key, {})[child] = record
            self._tell(key, own)

    def drop_child(self, namespace: str, child: ChildKey, uid: str = "", *, own: bool = False) -> None:
        """A child is gone. With `uid`, only that one: another of the same name may exist."""
        place = (namespace, child)
        key = self._owners.get(place)
        if key is None or (uid and self._children[key][child].uid != uid):
            return
        self._forget(place)
        self._tell(key, own)

    def keep_children(self, kind: Kind, namespace: str | None, seen: Collection[tuple[str, str]]) -> None:
        """A list named every child of a kind (as namespace and name) that exists: forget the others."""
        gone = [
            (place, child)
            for place, child in self._owners
            if child.kind == kind.name and namespace in (None, place) and (place, child.name) not in seen
        ]
        for place, child in gone:
            self.drop_child(place, child)

    def keys(self) -> Collection[Key]:
        """Every PDDeployment."""
        return self._objects.keys()

    def _forget(self, place: tuple[str, ChildKey]) -> None:
        key = self._owners.pop(place)
        children = self._children[key]
        del children[place[1]]
        if not children:
            del self._children[key]

    def _tell(self, key: Key, own: bool) -> None:
        if not own:
            self._wake(key, False)


def trimmed(body: Body) -> dict[str, Any]:
    """An object without what nobody reads: who owns which field, and the status of all children but Deployments."""
    metadata = {name: value for name, value in body["metadata"].items() if name not in _UNREAD}
    annotations = metadata.get("annotations") or {}
    if _LAST_APPLIED in annotations:
        metadata["annotations"] = {name: value for name, value in annotations.items() if name != _LAST_APPLIED}
    rest = {name: value for name, value in body.items() if name != "metadata"}
    if body.get("kind") not in (DEPLOYMENT.name, "PDDeployment"):
        rest.pop("status", None)
    return {**rest, "metadata": metadata}
