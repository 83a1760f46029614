"""Whether a live object still says what the operator wants: a comparison that looks only at what is wanted.

The API server adds defaults, and others add fields of their own; neither is a difference. A list of named things is
compared by name, any other list as a whole; quantities are compared as numbers; None, empty and missing are one.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Final

from pdx_api.quantities import quantity
from pdx_operator.render.merge_keys import OBJECT, OTHER_OBJECT

_QUANTITY_MAPS: Final = frozenset({"limits", "requests"})
_QUANTITIES: Final = frozenset({"sizeLimit", "divisor"})
_SELECTORS: Final = frozenset({"selector", "podSelector", "namespaceSelector", "labelSelector", "nodeSelector"})
"""Maps that are one value (structType or mapType atomic in k8s.io/api): one label more selects something else."""
_UNSET_AT_ZERO: Final = frozenset(
    {
        *("hostIPC", "hostNetwork", "hostPID", "hostPort", "initialDelaySeconds", "minReadySeconds", "paused"),
        *("publishNotReadyAddresses", "readOnly", "stdin", "stdinOnce", "tty"),
    }
)
"""Fields that k8s.io/api holds by value with omitempty: the API server leaves them out when they are false or 0."""


def differs(desired: Mapping[str, Any], live: Mapping[str, Any]) -> str | None:
    """Path of the first wanted field that the live object does not have so; None when there is none.

    Both are one object: apiVersion and kind, which items of a list lack, are not compared.
    """
    keys = OBJECT.get(desired["kind"], OTHER_OBJECT)
    wanted = {field: value for field, value in desired.items() if field not in ("apiVersion", "kind")}
    return next(_differences("", "", wanted, live, keys), None)


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
        yield from (f"{path}.{name}" for name in _strange(desired, live))


def _strange(desired: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[str]:
    """What a selector has beyond the wanted one, as paths below it."""
    for name, value in live.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{below}" for below in _strange(desired.get(name) or {}, value))
        elif value and name not in desired:
            yield name


def _in_list(path: str, desired: Sequence[Any], live: Sequence[Any], keys: Mapping[str, str]) -> Iterator[str]:
    if len(desired) != len(live):
        yield path
        return
    for i, (wanted, found) in enumerate(zip(desired, live, strict=True)):
        yield from _differences(f"{path}[{i}]", "", wanted, found, keys)


def _in_named(
    path: str, merge_key: str, desired: Sequence[Any], live: Sequence[Any], keys: Mapping[str, str]
) -> Iterator[str]:
    for wanted in desired:
        name = wanted.get(merge_key)
        place = f"{path}[{name}]"
        found = [list(_differences(place, "", wanted, other, keys)) for other in live if other.get(merge_key) == name]
        # Two ports may share a number, by protocol.
        yield from min(found, key=len, default=[place])


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
