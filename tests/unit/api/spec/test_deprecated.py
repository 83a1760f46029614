"""Objects with the names of PDX 0.1.0: converted, refused for people, read for programs."""

import copy
from typing import Any

import pytest

from pdx_api.render.engines import engine_inputs, pairing_revision
from pdx_api.rule import RULES_KEY
from pdx_api.spec.deprecated import converted, steps
from pdx_api.spec.parse import InvalidDeploymentError, parse
from pdx_api.spec.schema import object_schema
from tests.former_objects import FORMER, PRESENT


def test_every_deprecated_field_is_converted() -> None:
    before = copy.deepcopy(FORMER)
    assert converted(FORMER) == PRESENT
    assert before == FORMER, "the object itself stays"


def test_an_object_with_present_names_stays() -> None:
    assert not list(steps(PRESENT))
    assert converted(PRESENT) == PRESENT


def test_a_new_field_wins_over_the_old_one() -> None:
    body = copy.deepcopy(FORMER)
    body["spec"]["kvTransfer"]["verification"] = {"periodSeconds": 60}
    body["spec"]["routing"]["outlierDetection"] = {"stalledSeconds": 9}
    body["spec"]["engine"]["drainSeconds"] = 1
    spec = converted(body)["spec"]
    assert spec["kvTransfer"]["verification"] == {"periodSeconds": 60}
    assert spec["routing"]["outlierDetection"] == {"stalledSeconds": 9}
    assert spec["engine"] == {"drainSeconds": 1}


@pytest.mark.parametrize("autoscaled", [True, False])
def test_an_autoscaled_gateway_has_no_replicas(autoscaled: bool) -> None:
    body = {**FORMER, "spec": {"gateway": {"autoscaled": autoscaled, "replicas": 2, "workers": 1}}}
    assert converted(body)["spec"]["gateway"] == {"workers": 1, **({} if autoscaled else {"replicas": 2})}


@pytest.mark.parametrize(
    "spec", [None, [], {"routing": 5}, {"routing": {"ejection": None}}, {"kvTransfer": {"custom": 1}}]
)
def test_an_object_of_another_shape_stays(spec: Any) -> None:
    body = {**FORMER, "spec": spec}
    assert converted(body) == body


def test_a_parent_of_another_shape_is_no_fault() -> None:
    body = {**FORMER, "spec": {"routing": {"canarySeconds": 5}, "kvTransfer": "NIXL"}}
    assert converted(body) == body, "nothing is lost"
    for tolerant in (False, True):
        with pytest.raises(InvalidDeploymentError):
            parse(body, tolerant=tolerant)


def test_programs_read_deprecated_fields() -> None:
    assert parse(FORMER, tolerant=True) == parse(PRESENT)


def test_people_get_every_new_name() -> None:
    with pytest.raises(InvalidDeploymentError) as raised:
        parse(FORMER)
    found = {problem.path[1:]: problem.sentence for problem in raised.value.problems}
    assert ("routing", "canarySeconds") in found
    assert len(found) == 11
    assert found["routing", "canarySeconds"] == (
        "spec.routing.canarySeconds is 20: this field has another name; write kvTransfer.verification.periodSeconds "
        "(pdx convert does it)."
    )


def test_a_conversion_changes_no_engine() -> None:
    former, present = parse(FORMER, tolerant=True).spec, parse(PRESENT).spec
    assert pairing_revision(former) == pairing_revision(present)
    for role in present.pools():
        assert engine_inputs(former, role) == engine_inputs(present, role)


def test_every_deprecated_field_is_in_the_schema_with_its_rule() -> None:
    schema = object_schema()["properties"]["spec"]
    bare = object_schema(former=False)["properties"]["spec"]
    for step in steps(FORMER):
        found, other = schema, bare
        for key in step.path[1:]:
            found = found["items"] if isinstance(key, int) else found["properties"][key]
            other = other.get("items", {}) if isinstance(key, int) else other.get("properties", {}).get(key, {})
        if step.message and step.value is None:
            assert {"rule": "false", "message": step.message} in found[RULES_KEY]
            assert found["description"].startswith("Deprecated: ")
            assert not other, step.path
