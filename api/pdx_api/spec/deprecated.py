"""The renamed fields of PDX 0.1.0: what replaces each, and how an object is converted to the new names. Pure.

The CRD keeps them for one release, so that no stored value is lost. The API server refuses them with the new name,
except where they stand unchanged in a stored object; so the operator reads them.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.rule import RULES_KEY
from pdx_api.spec.custom import FAMILY_IS_NOT_FORMER, RENAMED_FAMILIES

Path = tuple[int | str, ...]
Body = Mapping[str, Any]

_ENTRY: Final = "[]"
"""As a step of a path: each entry of a list."""
_LABELS: Final = {
    "type": "object",
    "maxProperties": 64,
    "additionalProperties": {"type": "string", "maxLength": 63},
}


@dataclass(frozen=True, slots=True)
class Field:
    """A deprecated field."""

    path: Path
    """Inside the spec."""
    new: Path
    """Inside the spec; empty: nothing replaces it."""
    schema: Mapping[str, Any]
    instead: str = ""
    """What to write; empty: the new path."""
    wrap: str = ""
    """The value moves into this field of the new one."""

    @property
    def message(self) -> str:
        """Why the API server refuses the field, and what to write."""
        instead = self.instead or f"write {'.'.join(str(step) for step in self.new)}"
        return f"this field has another name; {instead} (pdx convert does it)" if self.new else instead


@dataclass(frozen=True, slots=True)
class Step:
    """One change of an object."""

    path: Path
    """Of a field that exists, from the object's root."""
    new: Path = ()
    """Where its value moves, from the object's root; empty: the field is removed, or keeps its place."""
    wrap: str = ""
    value: Any = None
    """The new value, if it changes."""
    message: str = ""
    """The end of a sentence that begins with the field's path."""


def _number(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _selector(old: str, new: str) -> Field:
    labels = ("observability", "scrapeFrom", _ENTRY)
    text = f"write {new}: {{matchLabels: ...}}"
    return Field((*labels, old), (*labels, new), _LABELS, text, wrap="matchLabels")


_EJECTION: Final = {
    "type": "object",
    "properties": {
        "consecutiveFailures": {**_number(1, 1000), "description": "Deprecated: outlierDetection.consecutiveErrors."},
    },
}

FIELDS: Final = (
    Field(("routing", "canarySeconds"), ("kvTransfer", "verification", "periodSeconds"), _number(0, 3600)),
    Field(
        ("routing", "ejection"),
        ("routing", "outlierDetection"),
        _EJECTION,
        "write routing.outlierDetection, and in it consecutiveErrors for consecutiveFailures",
    ),
    Field(("routing", "retries", "free"), ("routing", "retries", "minRetries"), _number(0, 10_000)),
    Field(
        ("routing", "queue", "maxMemory"),
        ("routing", "queue", "maxBufferedBytes"),
        {"x-kubernetes-int-or-string": True, "maxLength": 64},
    ),
    Field(("engine", "shutdownSeconds"), ("engine", "drainSeconds"), _number(0, 3600)),
    _selector("namespaceLabels", "namespaceSelector"),
    _selector("podLabels", "podSelector"),
    *(
        Field((role, "parallelism", "nodes"), (), _number(1, 64), "an engine uses one node; leave it out")
        for role in ("prefill", "decode", "aggregated")
    ),
)
_AUTOSCALED: Final = Field(
    ("gateway", "autoscaled"),
    (),
    {"type": "boolean"},
    "an autoscaler owns the number of gateway pods if replicas is unset; leave out autoscaled, and replicas too if "
    "autoscaled is true",
)
_INNER: Final = Field(
    ("routing", "ejection", "consecutiveFailures"), ("routing", "ejection", "consecutiveErrors"), _number(1, 1000)
)
"""A part of a renamed field. Its name changes first."""
_FAMILY: Final = ("spec", "kvTransfer", "custom", "family")


def steps(body: Body) -> Iterator[Step]:
    """The changes that remove every deprecated field from an object, in the order in which they apply."""
    for field in (_INNER, *FIELDS):
        for path in _found(body, ("spec", *field.path)):
            new = tuple(old if step == _ENTRY else step for step, old in zip(("spec", *field.new), path, strict=False))
            new += ("spec", *field.new)[len(new) :]
            yield Step(path, new if field.new else (), field.wrap, message="" if field is _INNER else field.message)
    for path in _found(body, ("spec", *_AUTOSCALED.path)):
        yield Step(path, message=_AUTOSCALED.message)
        if _at(body, path) is True:
            yield from (Step(each) for each in _found(body, ("spec", "gateway", "replicas")))
    for path in _found(body, _FAMILY):
        family = _at(body, path)
        if isinstance(family, str) and family in RENAMED_FAMILIES:
            yield Step(path, path, value=RENAMED_FAMILIES[family], message=FAMILY_IS_NOT_FORMER.message)


def converted(body: Body) -> dict[str, Any]:
    """A copy of an object without deprecated fields. A new field that is set wins over the old one."""
    changes = tuple(steps(body))
    if not changes:
        return dict(body)
    found: dict[str, Any] = _copied(body)
    for step in changes:
        if step.new and not _can_hold(found, step.new):
            continue  # the object is invalid, and keeps the value
        value = _removed(found, step.path)
        if step.new and _at(found, step.new) is None:
            value = value if step.value is None else step.value
            _set(found, step.new, {step.wrap: value} if step.wrap else value)
        if step.new[:-1] != step.path[:-1]:
            _without_empty(found, step.path[:-1])
    return found


def with_fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a spec with the deprecated fields, each with the rule that refuses it."""
    found = copy.deepcopy(dict(schema))
    for field in (*FIELDS, _AUTOSCALED):
        *parents, name = field.path
        inner = found
        for step in parents:
            inner = inner["items"] if step == _ENTRY else inner["properties"][step]
        new = ".".join(str(step) for step in field.new).replace(f".{_ENTRY}", _ENTRY)
        description = f"Deprecated: {new or field.instead}."
        rule = {"rule": "false", "message": field.message}
        inner["properties"][name] = {**copy.deepcopy(dict(field.schema)), "description": description, RULES_KEY: [rule]}
    return found


def with_status_fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a status with the fields that only the operator of 0.1.0 writes, until it is upgraded."""
    found = copy.deepcopy(dict(schema))
    count = {**_number(0, 1_000_000), "description": "Deprecated: desiredReplicas and readyReplicas."}
    text = {"type": "string", "maxLength": 512, "description": "Deprecated."}
    role = {"desired": count, "ready": count, "revision": text, "summary": text}
    parts = dict.fromkeys(("prefill", "decode", "aggregated"), "Deprecated: roles.")
    found["properties"] |= {name: _part(description, role) for name, description in parts.items()}
    gateway = found["properties"]["gateway"]
    gateway["properties"] |= {"desired": count, "ready": count}
    gateway.pop("required", None)
    return found


def _part(description: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "description": description, "properties": dict(properties)}


def _found(body: Any, path: Sequence[int | str], before: Path = ()) -> Iterator[Path]:
    """The paths of fields that exist and are not null."""
    if not path:
        if body is not None:
            yield before
    elif path[0] == _ENTRY:
        for number, entry in enumerate(body if isinstance(body, list) else ()):
            yield from _found(entry, path[1:], (*before, number))
    elif isinstance(body, Mapping) and path[0] in body:
        yield from _found(body[path[0]], path[1:], (*before, path[0]))


def _at(body: Any, path: Path) -> Any:
    for step in path:
        held = isinstance(step, int) or (isinstance(body, Mapping) and step in body)
        body = body[step] if held else None
    return body


def _copied(value: Any) -> Any:
    """A copy without shared parts: in YAML, several fields may have one value."""
    if isinstance(value, Mapping):
        return {key: _copied(entry) for key, entry in value.items()}
    return [_copied(entry) for entry in value] if isinstance(value, list) else value


def _removed(body: dict[str, Any], path: Path) -> Any:
    return _at(body, path[:-1]).pop(path[-1])


def _can_hold(body: Any, path: Path) -> bool:
    """Whether the parents of a field are objects, or absent."""
    return all(isinstance(_at(body, path[:n]), dict | list | None) for n in range(1, len(path)))


def _set(body: dict[str, Any], path: Path, value: Any) -> None:
    inner: Any = body
    for step in path[:-1]:
        if isinstance(step, int):
            inner = inner[step]
        else:
            if inner.get(step) is None:
                inner[step] = {}
            inner = inner[step]
    inner[path[-1]] = value


def _without_empty(body: dict[str, Any], path: Path) -> None:
    """Remove an object that has become empty."""
    if path and _at(body, path) == {}:
        _removed(body, path)
