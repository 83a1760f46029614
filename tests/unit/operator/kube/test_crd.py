"""Whether a CRD is recent enough, by its published schema."""

import copy
from typing import Any, cast

import pytest

from pdx_api.kube.client import Cluster, RefusedError
from pdx_api.spec.schema import object_schema
from pdx_operator.controller import crd_check
from pdx_operator.controller.crd_check import CRDCheck
from pdx_operator.kube.crd import gaps, missing_fields

OURS = object_schema()


def _changed(change: Any) -> dict[str, Any]:
    schema = copy.deepcopy(OURS)
    change(schema["properties"]["spec"]["properties"], schema["properties"]["status"]["properties"])
    return schema


def test_equal_and_newer_schemas_have_everything() -> None:
    assert list(gaps(OURS, OURS)) == []
    newer = _changed(lambda spec, status: (spec.update(new={}), status.update(new={}), spec["gateway"].update(new={})))
    assert list(gaps(newer, OURS)) == []


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        (lambda spec, status: status.pop("operator"), [".status.operator"]),
        (lambda spec, status: spec["gateway"]["properties"].pop("workers"), [".spec.gateway.workers"]),
        (
            lambda spec, status: status["conditions"]["items"]["properties"].pop("reason"),
            [".status.conditions[].reason"],
        ),
        (
            lambda spec, status: status["conditions"]["items"]["properties"]["type"].update(enum=["Ready", "Degraded"]),
            [f".status.conditions[].type {name}" for name in ("Available", "Progressing", "KVTransferVerified")],
        ),
    ],
)
def test_an_older_schema_lacks_fields(change: Any, missing: list[str]) -> None:
    assert list(gaps(_changed(change), OURS)) == missing


def test_no_value_that_programs_write_is_an_enum_in_the_schema() -> None:
    """An older CRD would refuse the whole status of a newer operator that adds a value."""
    status = OURS["properties"]["status"]["properties"]
    assert all("enum" not in field for field in status.values())
    assert "enum" not in status["conditions"]["items"]["properties"]["type"]


class _Published:
    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema

    async def document(self, path: str) -> dict[str, Any]:
        assert path == "/openapi/v3/apis/pdx.dev/v1alpha1"
        kind = {"x-kubernetes-group-version-kind": [{"group": "pdx.dev", "kind": "PDDeployment"}]}
        return {"components": {"schemas": {"x": {"type": "object"}, "y": {**self.schema, **kind}}}}


async def test_the_published_schema_is_compared() -> None:
    older = _changed(lambda spec, status: status.pop("operator"))
    assert await missing_fields(cast("Cluster", _Published(OURS))) == ()
    assert await missing_fields(cast("Cluster", _Published(older))) == (".status.operator",)


async def test_a_result_is_confirmed_and_every_change_notifies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crd_check, "_CONFIRM_SECONDS", 0.0)
    results: list[tuple[str, ...] | Exception] = [("a",), (), ("a",), ("a",), RefusedError("x", status=403), ()]
    notified: list[tuple[str, ...]] = []

    async def read() -> tuple[str, ...]:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    check = CRDCheck(read, lambda: notified.append(check.missing))
    await check.check()
    assert (check.missing, notified, check.done.is_set()) == ((), [], True), "the first read was of an old schema"
    await check.check()
    await check.check()
    assert (check.missing, notified) == (("a",), [("a",)]), "an unreadable schema changes nothing"
    await check.check()
    assert (check.missing, notified) == ((), [("a",), ()])
