"""Plain data about Kubernetes objects: their keys and bodies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

Body = Mapping[str, Any]
"""An object of the Kubernetes API as plain mappings and lists."""


class Key(NamedTuple):
    """Identifies a PDDeployment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ChildKey(NamedTuple):
    """Identifies a child among the children of one PDDeployment."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One PDDeployment and its children at one moment."""

    body: Body
    children: Mapping[ChildKey, Body]


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event on a PDDeployment."""

    reason: str
    """One word in CamelCase."""
    note: str
    """One sentence."""
    warning: bool = False


OBJECT_BYTES: Final = 256 * 1024
"""Largest PDDeployment that is reconciled. Tenants share the operator's memory."""
UNUSABLE: Final = "pdxUnusable"
"""Key of a cached object that is not kept, because it is too large, too deep or odd: a sentence that explains why."""


def controller_of(body: Body) -> Body:
    """The owner reference of an object's controller; empty without one."""
    owners = body["metadata"].get("ownerReferences") or ()
    return next((reference for reference in owners if reference.get("controller")), {})


def is_terminating(body: Body) -> bool:
    """Whether the object is being deleted."""
    return bool(body["metadata"].get("deletionTimestamp"))
