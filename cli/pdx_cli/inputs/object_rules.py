"""Rules of the API server that PDX's schema does not contain: labels, annotations, and devices. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pdx_api.quantities import quantity
from pdx_api.spec.messages import Problem
from pdx_api.words import key_is_no_text, shown, written

# k8s.io/apimachinery pkg/util/validation: IsQualifiedName, IsValidLabelValue
_NAME: Final = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_DOMAIN: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY_RULE: Final = "write a key of at most 63 letters, digits, -, _ and ., with or without a domain: example.org/app"
_VALUE_RULE: Final = "write at most 63 letters, digits, -, _ and ., with a letter or digit at both ends"


def broken_rules(body: Any) -> Iterator[Problem]:
    """Yield what the API server would refuse in the object or in its pods."""
    yield from _metadata(body, "labels")
    yield from _metadata(body, "annotations")
    spec = _mapping(body, "spec")
    for role in ("prefill", "decode", "aggregated", "gateway"):
        for kind in ("requests", "limits"):
            yield from _devices(("spec", role, "resources", kind), _mapping(spec, role, "resources", kind))


def _mapping(body: Any, *path: str) -> Mapping[Any, Any]:
    for step in path:
        body = body.get(step) if isinstance(body, Mapping) else None
    return body if isinstance(body, Mapping) else {}


def _metadata(body: Any, field: str) -> Iterator[Problem]:
    given = _mapping(body, "metadata").get(field)
    if given is not None and not isinstance(given, Mapping):
        yield Problem(("metadata", field), f"metadata.{field} is {shown(given)}; write a mapping.")
    for key, value in _mapping(body, "metadata", field).items():
        path = ("metadata", field, str(key))
        if not isinstance(key, str):
            yield Problem(path, key_is_no_text(path[:-1], key))
        elif not _is_key(key):
            yield Problem(path, f"metadata.{field} has the key {shown(key)}; {_KEY_RULE}.")
        elif value is not None and not isinstance(value, str):
            yield Problem(path, f"{written(path)} is {shown(value)}; write a text, in quotes.")
        elif field == "labels" and value and _NAME.fullmatch(value) is None:
            yield Problem(path, f"{written(path)} is {shown(value)}; {_VALUE_RULE}.")


def _is_key(key: str) -> bool:
    domain, slash, name = key.rpartition("/")
    return _NAME.fullmatch(name) is not None and (not slash or _DOMAIN.fullmatch(domain) is not None)


def _devices(parent: tuple[str, ...], amounts: Mapping[Any, Any]) -> Iterator[Problem]:
    for name, amount in amounts.items():
        # k8s.io/kubernetes pkg/apis/core/helper: IsExtendedResourceName
        if not isinstance(name, str) or "/" not in name or "kubernetes.io/" in name:
            continue
        if not isinstance(amount, int | str) or isinstance(amount, bool):
            continue
        value = quantity(amount)
        if value is None or value < 0 or value.denominator != 1:
            path = (*parent, name)
            yield Problem(path, f"{written(path)} is {shown(amount)}; write a whole number, for example 1.")
