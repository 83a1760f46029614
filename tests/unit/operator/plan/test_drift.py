"""Differences between a live object and its manifest."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pdx_api.quantities import quantity
from pdx_api.spec.parse import parse
from pdx_operator.plan.drift import differs
from pdx_operator.render.merge_keys import OBJECT, OTHER_OBJECT
from tests.unit.operator.render.manifests_of import manifests_of
from tests.unit.operator.render.test_golden import SPECS

Path = tuple[str | int, ...]

MANIFESTS = {
    f"{spec.name.split('.')[0]}-{manifest['kind']}-{manifest['metadata']['name']}": manifest
    for spec in SPECS
    for manifest in manifests_of(parse(yaml.safe_load(spec.read_text())))
}
SELECTORS = {"selector", "podSelector", "namespaceSelector", "labelSelector", "nodeSelector", "matchLabels"}


def _places(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    yield path, value
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in below:
        yield from _places(child, (*path, step))


def _first_of_their_kind() -> Iterator[Any]:
    """Each manifest with its fields that no manifest of its kind before it has: most have the same fields."""
    seen: set[tuple[object, ...]] = set()
    for name, manifest in MANIFESTS.items():
        places = {(manifest["kind"], *_shape(path, value)): (path, value) for path, value in _places(manifest)}
        yield pytest.param(manifest, [places[shape] for shape in places if shape not in seen], id=name)
        seen.update(places)


def _shape(path: Path, value: Any) -> tuple[object, ...]:
    """The path, with the first element of each list and another one, and what decides how a value is compared."""
    return (*(step if isinstance(step, str) else step == 0 for step in path), type(value).__name__, bool(value))


FIELDS = list(_first_of_their_kind())


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _changed(manifest: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(manifest)
    _at(changed, path[:-1])[path[-1]] = value
    return changed


def _removed(manifest: dict[str, Any], path: Path) -> dict[str, Any]:
    changed = copy.deepcopy(manifest)
    del _at(changed, path[:-1])[path[-1]]
    return changed


@pytest.mark.parametrize(("manifest", "places"), FIELDS)
def test_a_changed_or_missing_field_differs(manifest: dict[str, Any], places: list[tuple[Path, Any]]) -> None:
    assert differs(manifest, copy.deepcopy(manifest)) is None
    for path, value in places:
        if not path or path[0] in ("apiVersion", "kind") or value in ({}, []):
            continue
        assert differs(manifest, _removed(manifest, path)) is not None, path
        if not isinstance(value, dict | list):
            other = value + 1 if type(value) is int else not value if isinstance(value, bool) else f"{value}x"
            assert differs(manifest, _changed(manifest, path, other)) is not None, path


@pytest.mark.parametrize(("manifest", "places"), FIELDS)
def test_added_fields_are_no_difference(manifest: dict[str, Any], places: list[tuple[Path, Any]]) -> None:
    keys = OBJECT.get(manifest["kind"], OTHER_OBJECT)
    for path, value in places:
        field = next((step for step in reversed(path) if isinstance(step, str)), "")
        if isinstance(value, dict):
            more: Any = {**value, "added": "by default"}
            is_whole = not SELECTORS.isdisjoint(path) and "matchExpressions" not in path
        elif isinstance(value, list):
            more = [*value, {"name": "added", keys.get(field, "name"): "added"}]
            is_whole = field not in keys
        else:
            continue
        live = _changed(manifest, path, more) if path else more
        assert (differs(manifest, live) is not None) == is_whole, path


@pytest.mark.parametrize(
    ("desired", "live", "path"),
    [
        ({"a": None, "b": {}, "c": [], "d": ""}, {}, None),
        ({"a": None}, {"a": None}, None),
        ({"c": []}, {"c": ["x"]}, "c"),
        ({"readOnly": False, "minReadySeconds": 0}, {}, None),
        ({"automountServiceAccountToken": False}, {}, "automountServiceAccountToken"),
        ({"replicas": 0}, {}, "replicas"),
        ({"replicas": 1}, {"replicas": True}, "replicas"),
        ({"maxUnavailable": 1}, {"maxUnavailable": "1"}, "maxUnavailable"),
        ({"limits": {"cpu": 1}}, {"limits": {"cpu": "1"}}, None),
        ({"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "1"}}, None),
        ({"limits": {"cpu": "0.0001"}}, {"limits": {"cpu": "1m"}}, None),
        ({"limits": {"memory": "1024Mi"}}, {"limits": {"memory": "1Gi"}}, None),
        ({"limits": {"memory": "1G"}}, {"limits": {"memory": "1Gi"}}, "limits.memory"),
        ({"emptyDir": {"sizeLimit": "2048Mi"}}, {"emptyDir": {"sizeLimit": "2Gi"}}, None),
        ({"value": "1000m"}, {"value": "1"}, "value"),
        (
            {"env": [{"name": "B", "value": "2"}]},
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}]},
            "env[B].value",
        ),
        ({"args": ["a", "b"]}, {"args": ["b", "a"]}, "args[0]"),
        ({"args": ["a"]}, {"args": "a"}, "args"),
        ({"emptyDir": {"medium": "Memory"}}, {"emptyDir": "Memory"}, "emptyDir.medium"),
        (
            {"ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]},
            {"ports": [{"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}]},
            None,
        ),
        (
            {"selector": {"matchLabels": {"a": "1"}}},
            {"selector": {"matchLabels": {"a": "1", "b": "2"}}},
            "matchLabels.b",
        ),
    ],
)
def test_one_field(desired: dict[str, Any], live: dict[str, Any], path: str | None) -> None:
    found = differs({"kind": "Deployment", "spec": desired}, {"spec": live})
    assert found == path if path is None else (found or "").endswith(path)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("0.5", 0.5), ("500m", 0.5), ("1k", 1000), ("1Ki", 1024), ("2Gi", 2**31), ("1e3", 1000), (".5", 0.5)],
)
def test_a_quantity_is_a_number(text: str, number: float) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "one", "1ki", "1GiB", "--1", "1 Gi"])
def test_other_texts_are_no_quantity(text: str) -> None:
    assert quantity(text) is None


@given(st.integers(min_value=0, max_value=10**9), st.sampled_from(["k", "M", "G", "Ki", "Mi", "Gi"]))
def test_a_quantity_is_the_same_in_every_unit(count: int, unit: str) -> None:
    whole = quantity(f"{count}{unit}")
    assert whole is not None
    assert quantity(str(whole)) == whole
    assert quantity(f"{int(whole) * 1000}m") == whole
