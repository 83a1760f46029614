"""Compares a live object with its manifest, in the fields of the manifest only.

Defaults of the API server and fields of other writers are no difference. A list of named elements is compared by name,
any other list as a whole. Quantities are compared as numbers. None, empty and missing are equal.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Final

from pdx_api.quantities import quantity
from pdx_operator.render.merge_keys import OBJECT, OTHER_OBJECT

_QUANTITY_MAPS: Final = frozenset({"limits", "requests"})
_QUANTITIES: Final = frozenset({"sizeLimit", "divisor"})
_SELECTORS: Final = frozenset({"selector", "podSelector", "namespaceSelector", "labelSelector", "nodeSelector"})
"""Maps that are one value (structType or mapType atomic in k8s.io/api): an additional label changes the selection."""
_UNSET_AT_ZERO: Final = frozenset(
    {
        *("hostIPC", "hostNetwork", "hostPID", "hostPort", "initialDelaySeconds", "minReadySeconds", "paused"),
        *("publishNotReadyAddresses", "readOnly", "stdin", "stdinOnce", "tty"),
    }
)
"""Fields that k8s.io/api holds by value with omitempty: the API server omits them when they are false or 0."""


def differs(desired: Mapping[str, Any], live: Mapping[str, Any]) -> str | None:
    """Path of the first desired field that differs in the live object; None without a difference.

    apiVersion and kind are not compared, because the items of a list lack them.
    """
    keys = OBJECT.get(desired["kind"], OTHER_OBJECT)
    compared = {field: value for field, value in desired.items() if field not in ("apiVersion", "kind")}
    return next(_differences("", "", compared, live, keys), None)


def _differences(path: str, parent: str, desired: Any, live: Any, keys: Mapping[str, str]) -> Iterator[str]:
    field = path.rpartition(".")[2].partition("[")[0]
    if isinstance(desired, Mapping):
        yield from _in_map(path, field, desired, live if isinstance(live, Mapping) else {}, keys)
    elif isinstance(desired, Sequence) and not isinstance(desired, str):
        elements = live if isinstance(live, Sequence) and not isinstance(live, str) else ()
        if keys.get(field) is None:
            yield from _in_list(path, desired, elements, keys)
        else:
            yield from _in_named(path, keys[field], desired, elements, keys)
    elif not _same(desired, live, field, parent):
        yield path


def _in_map(
    path: str, field: str, desired: Mapping[str, Any], live: Mapping[str, Any], keys: Mapping[str, str]
) -> Iterator[str]:
    for name, value in desired.items():
        yield from _differences(f"{path}.{name}" if path else name, field, value, live.get(name), keys)
    if field in _SELECTORS:
        yield from (f"{path}.{name}" for name in _additional(desired, live))


def _additional(desired: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[str]:
    """Paths in a live selector that the desired selector lacks."""
    for name, value in live.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{below}" for below in _additional(desired.get(name) or {}, value))
        elif value and name not in desired:
            yield name


def _in_list(path: str, desired: Sequence[Any], live: Sequence[Any], keys: Mapping[str, str]) -> Iterator[str]:
    if len(desired) != len(live):
        yield path
        return
    for i, (element, found) in enumerate(zip(desired, live, strict=True)):
        yield from _differences(f"{path}[{i}]", "", element, found, keys)


def _in_named(
    path: str, merge_key: str, desired: Sequence[Any], live: Sequence[Any], keys: Mapping[str, str]
) -> Iterator[str]:
    for element in desired:
        name = element.get(merge_key)
        where = f"{path}[{name}]"
        found = [list(_differences(where, "", element, other, keys)) for other in live if other.get(merge_key) == name]
        # Two ports of different protocols may have one number.
        yield from min(found, key=len, default=[where])


def _same(desired: Any, live: Any, field: str, parent: str) -> bool:
    if desired == live and isinstance(desired, bool) == isinstance(live, bool):
        return True
    if live is None:
        return desired in (None, "") or (not desired and field in _UNSET_AT_ZERO)
    if parent in _QUANTITY_MAPS or field in _QUANTITIES:
        numbers = quantity(desired), quantity(live)
        # The API server rounds resources up to thousandths (SetDefaults_ResourceList).
        return None not in numbers and len({ceil(number * 1000) for number in numbers if number is not None}) == 1
    return False
