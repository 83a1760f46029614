"""What is wrong with an object that no program can use: its depth, or a field of its metadata of the wrong type."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pdx_api.names import GROUP, KIND
from pdx_operator.kube.resources import UNUSABLE, Body

LEVELS: Final = 64
"""Levels of a usable object. Copying and rendering one takes several calls for each level."""

_Test = Callable[[Any], bool]


class UnusableObjectError(ValueError):
    """The object cannot be identified, so it cannot be stored and nothing can be written to it."""


def require_identity(body: Body) -> None:
    """Raise UnusableObjectError for an object without the metadata that identify it."""
    metadata = body.get("metadata") if isinstance(body, Mapping) else None
    if not isinstance(metadata, Mapping):
        raise UnusableObjectError("an object without metadata")
    for name in ("namespace", "name", "uid"):
        if not isinstance(metadata.get(name), str):
            raise UnusableObjectError(f"an object whose metadata.{name} is no text")
    version = metadata.get("resourceVersion")
    if not (isinstance(version, str) and version.isdecimal() and len(version) <= _VERSION_DIGITS):
        raise UnusableObjectError("an object whose metadata.resourceVersion is no number")


def fault_of(body: Body) -> str:
    """Say in one sentence why an object with an identity cannot be used; empty if it can."""
    if reason := body.get(UNUSABLE):
        return str(reason)
    if is_deeper(body, LEVELS):
        return f"the object is nested deeper than {LEVELS} levels; write a flatter one"
    wrong = wrong_metadata(body["metadata"])
    if wrong:
        return f"metadata.{wrong[0]} has a wrong type; correct it"
    return "" if is_status(body.get("status")) else "the status has a wrong type; remove it"


def wrong_metadata(metadata: Body) -> tuple[str, ...]:
    """The names of metadata of a wrong type."""
    return tuple(name for name, is_right in _METADATA.items() if name in metadata and not is_right(metadata[name]))


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and dicts are nested deeper than so many levels."""
    containers = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        members = (outer.values() if isinstance(outer, dict) else outer for outer in containers)
        containers = [inner for outer in members for inner in outer if isinstance(inner, (dict, list))]
        if not containers:
            return False
    return True


def stub(body: Body, reason: str) -> dict[str, Any]:
    """The identity of an object that is not kept, the reason, and the status of a PDDeployment."""
    wrong = wrong_metadata(body["metadata"])
    metadata = {name: body["metadata"][name] for name in _IDENTITY if name in body["metadata"] and name not in wrong}
    labels = {name: text for name, text in (metadata.get("labels") or {}).items() if name.startswith(f"{GROUP}/")}
    status = {"status": body["status"]} if body.get("kind") == KIND and _has_usable_status(body) else {}
    kind = {name: body[name] for name in ("apiVersion", "kind") if name in body}
    return {**kind, "metadata": {**metadata, "labels": labels}, "spec": {}, UNUSABLE: reason, **status}


def _has_usable_status(body: Body) -> bool:
    return "status" in body and is_status(body["status"]) and not is_deeper(body["status"], LEVELS)


_VERSION_DIGITS: Final = 40
_IDENTITY: Final = (
    *("name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp", "creationTimestamp"),
    *("labels", "ownerReferences"),
)
"""Metadata that a stub contains."""


def _is_texts(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values()))


def _is_list_of(kind: type) -> _Test:
    return lambda value: value is None or (isinstance(value, list) and all(isinstance(one, kind) for one in value))


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def is_status(status: Any) -> bool:
    """Whether a status has the shape that the operator reads."""
    if status is None:
        return True
    if not isinstance(status, Mapping):
        return False
    conditions = status.get("conditions")
    return conditions is None or (isinstance(conditions, list) and all(isinstance(one, Mapping) for one in conditions))


_METADATA: Final[Mapping[str, _Test]] = {
    "labels": _is_texts,
    "annotations": _is_texts,
    "ownerReferences": _is_list_of(dict),
    "finalizers": _is_list_of(str),
    "deletionTimestamp": _is_text,
    "creationTimestamp": _is_text,
    "generation": lambda value: isinstance(value, int),
}
"""Tests of the metadata that the operator reads."""
