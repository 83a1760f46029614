"""An odd object is one invalid object: its stub can be stored, planned and reported."""

import json
from typing import Any

import pytest

from pdx_api.kube.kinds import KIND_OF
from pdx_api.names import API_VERSION, KIND
from pdx_operator.app.kopf_session import Bodies, usable_event
from pdx_operator.app.object_summary import ObjectSummary
from pdx_operator.kube.cache import Cache, Record
from pdx_operator.kube.object_shape import LEVELS, UnusableObjectError, is_deeper
from pdx_operator.kube.resources import Key
from pdx_operator.plan.reconcile_plan import plan
from pdx_operator.render.gateway import Installation

IDENTITY = {"namespace": "ns", "name": "m", "uid": "u", "resourceVersion": "5", "generation": 3}


def _nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


def _object(**fields: Any) -> dict[str, Any]:
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": IDENTITY, "spec": {}, "status": {"url": "u"}}
    metadata = fields.pop("metadata", {})
    return {**body, **fields, "metadata": {**IDENTITY, **metadata} if isinstance(metadata, dict) else metadata}


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "deep spec": (_object(spec={"x": _nested(150)}), "nested deeper than 64 levels"),
    "deep annotations": (_object(metadata={"annotations": _nested(150)}), "nested deeper than 64 levels"),
    "deep status": (_object(status=_nested(150)), "nested deeper than 64 levels"),
    "labels": (_object(metadata={"labels": ["a"]}), "metadata.labels has a wrong type"),
    "a label": (_object(metadata={"labels": {"a": {"b": 1}}}), "metadata.labels has a wrong type"),
    "annotations": (_object(metadata={"annotations": 7}), "metadata.annotations has a wrong type"),
    "owners": (_object(metadata={"ownerReferences": {"uid": "u"}}), "metadata.ownerReferences has a wrong type"),
    "an owner": (_object(metadata={"ownerReferences": [None]}), "metadata.ownerReferences has a wrong type"),
    "finalizers": (_object(metadata={"finalizers": 7}), "metadata.finalizers has a wrong type"),
    "generation": (_object(metadata={"generation": "3"}), "metadata.generation has a wrong type"),
    "deletion": (_object(metadata={"deletionTimestamp": ["now"]}), "metadata.deletionTimestamp has a wrong type"),
    "status": (_object(status=["a"]), "the status has a wrong type"),
    "conditions": (_object(status={"conditions": ["a"]}), "the status has a wrong type"),
    "10,000 variables": (_object(spec={"engine": {"env": [{"name": "V", "value": f"{n:30}"} for n in range(10_000)]}}),
                         "write one of at most 256 KiB"),
    "a long label": (_object(metadata={"labels": {"a": "b" * 2**20}}), "write one of at most 256 KiB"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "reason"), ODD.values(), ids=ODD)
def test_an_odd_object_is_one_invalid_object(body: dict[str, Any], reason: str) -> None:
    summaries: list[ObjectSummary] = []
    cache = Cache(lambda *_: None, lambda _, seen: summaries.append(ObjectSummary.of(seen or {})))
    cache.upsert_object(body)
    snapshot = cache.snapshot(Key("ns", "m"))
    assert snapshot is not None
    assert len(summaries) == 1
    planned = plan(snapshot, Installation("g"))
    assert (reason in planned.invalid, planned.has_writes) == (True, False)


@pytest.mark.parametrize(("body", "reason"), ODD.values(), ids=ODD)
def test_an_odd_object_that_kopf_reports_is_one_invalid_object(body: dict[str, Any], reason: str) -> None:
    bodies = Bodies()
    event = json.loads(usable_event(json.dumps({"type": "ADDED", "object": body}).encode(), bodies))
    held = bodies.take(event["object"])
    assert held is not None
    assert reason in json.loads(json.dumps(plan_of(dict(held))))


def test_kopf_gets_identities_and_the_handler_the_newest_object() -> None:
    bodies = Bodies()

    def receive(kind: str, version: int) -> dict[str, Any]:
        body = _object()
        body["metadata"]["resourceVersion"] = str(version)
        event = json.loads(usable_event(json.dumps({"type": kind, "object": body}).encode(), bodies))
        assert set(event["object"]["metadata"]) == {"namespace", "name", "uid", "resourceVersion"}
        return dict(event["object"])

    first, second = receive("ADDED", 1), receive("MODIFIED", 2)
    taken = bodies.take(first)
    assert taken is not None
    assert (taken["metadata"]["resourceVersion"], bodies.take(second)) == ("2", None)
    third = receive("MODIFIED", 3)
    receive("DELETED", 4)
    assert bodies.take(third) is None


def plan_of(body: dict[str, Any]) -> str:
    """The sentence of the plan for an object."""
    cache = Cache(lambda *_: None)
    cache.upsert_object(body)
    snapshot = cache.snapshot(Key("ns", "m"))
    assert snapshot is not None
    return plan(snapshot, Installation("g")).invalid


@pytest.mark.parametrize(
    "metadata",
    [None, [], {}, {"name": 7}, {"namespace": None}, {"uid": ["u"]}, {"resourceVersion": "9" * 5000},
     {"resourceVersion": 5}, {"resourceVersion": "x"}],
)  # fmt: skip
def test_an_object_without_an_identity_is_refused(metadata: Any) -> None:
    body = _object(metadata={**metadata, "uid": None} if metadata == {} else metadata)
    with pytest.raises(UnusableObjectError):
        Record.of(body)
    with pytest.raises(UnusableObjectError):
        Cache(lambda *_: None).upsert_child(KIND_OF["Service"], body)
    assert usable_event(json.dumps({"type": "MODIFIED", "object": body}).encode(), Bodies()) == b""


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"7", b'{"type": "ADDED"}', b'{"object": {}}', b'{"type": 1, "object": []}']
)
def test_a_line_without_an_event_is_skipped(line: bytes) -> None:
    assert usable_event(line, Bodies()) == b""


def test_other_events_pass() -> None:
    event = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    assert json.loads(usable_event(json.dumps(event).encode(), Bodies())) == event


def test_an_object_of_the_most_levels_is_usable() -> None:
    assert not is_deeper(_nested(LEVELS), LEVELS)
    assert is_deeper(_nested(LEVELS + 1), LEVELS)
    assert not Record.of(_object(spec={"x": _nested(LEVELS - 2)})).unusable
