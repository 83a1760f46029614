"""The CRD is structural, described and bounded, and agrees with the types."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from pdx_api.connectors.checks import Checks, text
from pdx_api.connectors.nixl import Nixl
from pdx_api.names import Order
from pdx_api.rule import RULES_KEY
from pdx_api.rules.connector_rules import order_rules, settings
from pdx_api.spec import kv_transfer, model, routing, types
from pdx_api.spec.fields import Part
from pdx_api.spec.parse import parse
from pdx_api.spec.schema import (
    INT_OR_STRING,
    LIST_TYPE,
    PRESERVE,
    NotStructuralError,
    object_schema,
    structural,
)
from pdx_api.spec.status import GatewayStatus, Status
from scripts import generate
from scripts.crd import custom_resource_definition
from tests.pddeployments import FULL, GOOD, as_stored

Schema = Mapping[str, Any]

SCHEMA = object_schema()
SIMPLE = ("string", "integer", "number", "boolean")
MOST = 256 * 1024
"""Bytes that an annotation may hold: a client-side apply keeps the object in one."""


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema in the schema, with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if key in schema:
            yield from nodes(schema[key], path + mark)


NODES = [(path, schema) for path, schema in nodes(SCHEMA) if not path.startswith(".metadata")]


def test_every_node_is_structural() -> None:
    for path, schema in NODES:
        assert not {"$ref", "anyOf", "oneOf", "allOf", "not", "const", "title"} & set(schema), path
        kind = schema.get("type")
        if kind is None:
            assert schema.get(INT_OR_STRING) or schema.get(PRESERVE), path
            assert "properties" not in schema, path
        elif kind == "array":
            assert schema[LIST_TYPE] == ("map" if "x-kubernetes-list-map-keys" in schema else "atomic"), path
            assert set(schema.get("x-kubernetes-list-map-keys", ())) <= set(schema["items"].get("required", ())), path
        elif kind == "object":
            assert ("properties" in schema) is not ("additionalProperties" in schema), path
            assert set(schema.get("required", ())) <= set(schema.get("properties", ())), path
        else:
            assert kind in SIMPLE, path


def test_every_field_is_described() -> None:
    for path, schema in NODES:
        for name, inner in schema.get("properties", {}).items():
            assert inner.get("description", "").endswith((".", ")")) or name == "metadata", f"{path}.{name}"


def test_everything_is_bounded() -> None:
    for path, schema in NODES:
        if (schema.get("type") == "string" or INT_OR_STRING in schema) and path not in (".apiVersion", ".kind"):
            assert "maxLength" in schema or "enum" in schema, path
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path


def test_free_form_is_only_where_it_must_be() -> None:
    free = {path.removesuffix(".*") for path, schema in nodes(SCHEMA) if PRESERVE in schema}
    overlays = {path for path in free if ".podTemplate.spec" in path}
    assert free - overlays == {".spec.kvTransfer.config", ".spec.kvTransfer.custom.prefillParams"}


def test_the_schema_contains_every_rule() -> None:
    messages = {rule["message"] for _, schema in nodes(SCHEMA) for rule in schema.get(RULES_KEY, ())}
    parts = [
        kind
        for kind in (*vars(kv_transfer).values(), *vars(model).values(), *vars(routing).values(), *vars(types).values())
        if isinstance(kind, type) and issubclass(kind, Part)
    ]
    assert messages >= {rule.message for part in parts for rule in part.rules}
    for message in messages:
        assert not message.endswith(".")
        assert "\n" not in message


def filled(schema: Schema, value: Any) -> Any:
    """The value with defaults filled in as the API server does."""
    if isinstance(value, list):
        return [filled(schema.get("items", {}), entry) for entry in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    properties = schema["properties"]
    found = {name: inner["default"] for name, inner in properties.items() if "default" in inner} | value
    return {name: filled(properties.get(name, {}), entry) for name, entry in found.items()}


@pytest.mark.parametrize("body", [GOOD, FULL])
def test_the_defaults_are_those_of_the_types(body: Any) -> None:
    spec = parse(body).spec.model_dump(mode="json", by_alias=True)
    config = spec["kvTransfer"].pop("config")
    ours = filled(SCHEMA["properties"]["spec"], body["spec"])
    assert ours["kvTransfer"].pop("config") == config
    assert _without_none(as_stored(spec, ours)) == _without_none(ours)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(entry) for entry in value] if isinstance(value, list) else value


def test_a_client_side_apply_can_store_the_crd() -> None:
    assert len(json.dumps(custom_resource_definition())) < MOST
    assert all(len(text) < MOST for text in generate.generated(generate.ROOT).values())


def test_columns_show_fields_that_exist() -> None:
    (version,) = custom_resource_definition()["spec"]["versions"]
    paths = {path for path, _ in nodes(SCHEMA)} | {".metadata.creationTimestamp"}
    names = [column["name"] for column in version["additionalPrinterColumns"] if column["priority"] == 0]
    assert names == ["Prefill", "Decode", "Ready", "KV", "Reason", "Age"]
    for column in version["additionalPrinterColumns"]:
        assert column["jsonPath"].split("[")[0] in paths


def test_a_status_is_parsed_again() -> None:
    status = Status(observed_generation=1, gateway=GatewayStatus(desired_replicas=2, ready_replicas=1))
    body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert body == {"observedGeneration": 1, "gateway": {"desiredReplicas": 2, "readyReplicas": 1}}
    assert Status.model_validate({**body, "fromTheFuture": 1}) == status


def test_there_is_no_phase() -> None:
    assert "phase" not in SCHEMA["properties"]["status"]["properties"]


@dataclass(frozen=True, slots=True)
class _OnlyPull(Nixl):
    name: str = "OnlyPull"
    orders: tuple[Order, ...] = (Order.PREFILL_FIRST,)


def test_a_connector_that_allows_some_orders_gives_a_rule() -> None:
    assert order_rules([Nixl()]) == ()
    (rule,) = order_rules([_OnlyPull(), Nixl()])
    assert rule.cel == "self.connector != 'OnlyPull' || !has(self.order) || self.order in ['PrefillFirst']"
    assert rule.message == "connector OnlyPull does not allow this order; write one of: PrefillFirst"
    transfer = kv_transfer.KVTransfer(order=Order.CONCURRENT)
    assert rule.holds(transfer)
    assert not rule.holds(transfer.model_copy(update={"connector": "OnlyPull"}))
    assert rule.holds(transfer.model_copy(update={"connector": "OnlyPull", "order": None}))


def test_a_setting_of_two_connectors_occurs_once() -> None:
    both = settings([Nixl(), _OnlyPull()])
    assert [(setting.name, whose) for setting, whose in both.items()] == [("kv_lease_duration", "NIXL, OnlyPull")]
    other = replace(_OnlyPull(), checks=Checks(settings=(text("kv_lease_duration", "another thing."),)))
    with pytest.raises(ValueError, match="OnlyPull and NIXL do not agree on the setting kv_lease_duration"):
        settings([Nixl(), other])


class _Unlike(Part):
    """A type that the schema cannot express."""

    choice: int | bool = Field(default=1, description="A choice.")


class _Unordered(Part):
    """A type that the schema cannot express."""

    entries: Annotated[set[int], Field(max_length=2)] = Field(default=set(), description="A set.")


@pytest.mark.parametrize(
    ("model", "message"), [(_Unlike, "x.choice: a choice of 2 types"), (_Unordered, "x.entries: uniqueItems")]
)
def test_a_type_that_is_not_structural_is_named(model: type[Part], message: str) -> None:
    with pytest.raises(NotStructuralError, match=message):
        structural(model.model_json_schema(), "x")


@pytest.mark.parametrize("quantity", [1, "1", "0.5", "500m", "1e3", "16Gi", "1k", "2E", "100u"])
def test_quantities(quantity: int | str) -> None:
    resources = types.Resources.model_validate({"requests": {"cpu": quantity}, "limits": {"cpu": quantity}})
    assert resources.limits["cpu"] == quantity


@pytest.mark.parametrize(
    ("request_", "limit", "fits"),
    [("1500m", 1, False), ("1000m", 1, True), ("1Gi", "1G", False), ("1G", "1Gi", True), ("1e3", "1k", True)],
)
def test_requests_are_compared_with_limits(request_: str, limit: int | str, fits: bool) -> None:
    body = {"requests": {"memory": request_}, "limits": {"memory": limit}}
    if fits:
        types.Resources.model_validate(body)
    else:
        with pytest.raises(ValueError, match="a request exceeds its limit"):
            types.Resources.model_validate(body)


def test_the_generator_reports_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    (tmp_path / generate.CHART_CRDS).mkdir(parents=True)
    monkeypatch.setattr("sys.argv", ["generate", "--check"])
    assert generate.main() == 1
    assert "crds/pdx.dev_pddeployments.yaml is out of date; run: make generate" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["generate"])
    assert generate.main() == 0
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {str(path) for path in generate.generated(tmp_path)}
    assert written > {
        "crds/pdx.dev_pddeployments.yaml",
        "charts/pdx/files/crds/pdx.dev_pddeployments.yaml",
        "docs/failure-matrix.md",
        "docs/reference.md",
    }
    monkeypatch.setattr("sys.argv", ["generate", "--check"])
    assert generate.main() == 0
