"""The cache: its contents after watches and own writes, and its notifications."""

import random
from typing import Any

import pytest

from pdx_api.kube.kinds import KIND_OF
from pdx_api.names import API_VERSION, KIND, LABEL_DEPLOYMENT
from pdx_operator.kube.cache import Cache, Record, trimmed
from pdx_operator.kube.resources import ChildKey, Key
from pdx_operator.plan.reconcile_plan import plan
from pdx_operator.render.gateway import Installation

KEY = Key("ns", "m")
DEPLOYMENT, SERVICE = KIND_OF["Deployment"], KIND_OF["Service"]


class Notified:
    """A cache, and its notifications since the last read."""

    def __init__(self) -> None:
        self.notified: list[tuple[Key, bool]] = []
        self.cache = Cache(lambda key, spec_changed: self.notified.append((key, spec_changed)))

    def since(self) -> list[tuple[Key, bool]]:
        notified, self.notified = self.notified, []
        return notified


@pytest.fixture
def notified_cache() -> Notified:
    notified = Notified()
    notified.cache.upsert_object(_object(version=1))
    notified.since()
    return notified


def _object(*, version: int, uid: str = "u", generation: int = 1, **fields: Any) -> dict[str, Any]:
    metadata = {
        "namespace": "ns",
        "name": "m",
        "uid": uid,
        "resourceVersion": str(version),
        "generation": generation,
        "managedFields": [{"manager": "x"}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "1"},
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, **fields}


def _child(name: str, *, version: int, uid: str = "c", owner: str = "m", **fields: Any) -> dict[str, Any]:
    labels = {LABEL_DEPLOYMENT: owner}
    metadata = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"metadata": metadata, **fields}


def test_only_a_new_spec_is_reported_as_changed() -> None:
    notified = Notified()
    notified.cache.upsert_object(_object(version=1))
    assert notified.since() == [(KEY, True)]
    notified.cache.upsert_object(_object(version=2, status={"x": 1}))
    assert notified.since() == [(KEY, False)]
    notified.cache.upsert_object(_object(version=3, generation=2))
    assert notified.since() == [(KEY, True)]


def test_own_writes_cause_no_notification(notified_cache: Notified) -> None:
    notified_cache.cache.upsert_child(SERVICE, _child("s", version=5), own=True)
    notified_cache.cache.upsert_child(SERVICE, _child("s", version=5))
    notified_cache.cache.upsert_child(SERVICE, _child("s", version=4, spec={"old": True}))
    assert notified_cache.since() == []
    snapshot = notified_cache.cache.snapshot(KEY)
    assert snapshot is not None
    assert "spec" not in snapshot.children[ChildKey("Service", "s")]


def test_a_new_spec_in_the_answer_to_a_write_is_noticed(notified_cache: Notified) -> None:
    notified_cache.cache.upsert_object(_object(version=3, generation=2, status={"x": 1}), own=True)
    assert notified_cache.since() == [(KEY, True)]
    notified_cache.cache.upsert_object(_object(version=2, generation=2))
    assert notified_cache.since() == []


def test_a_child_that_moves_notifies_both_owners(notified_cache: Notified) -> None:
    notified_cache.cache.upsert_child(SERVICE, _child("s", version=5))
    notified_cache.since()
    notified_cache.cache.upsert_child(SERVICE, _child("s", version=6, owner="other"))
    assert notified_cache.since() == [(KEY, False), (Key("ns", "other"), False)]
    snapshot = notified_cache.cache.snapshot(KEY)
    assert snapshot is not None
    assert not snapshot.children


def test_deleting_a_previous_child_keeps_the_present_one(notified_cache: Notified) -> None:
    notified_cache.cache.upsert_child(SERVICE, _child("s", version=5, uid="new"))
    notified_cache.since()
    notified_cache.cache.delete_child("ns", ChildKey("Service", "s"), "old")
    assert notified_cache.since() == []
    notified_cache.cache.delete_child("ns", ChildKey("Service", "s"), "new")
    assert notified_cache.since() == [(KEY, False)]


def test_deleting_a_previous_object_keeps_the_present_one(notified_cache: Notified) -> None:
    notified_cache.cache.delete_object(KEY, "another")
    assert KEY in notified_cache.cache
    notified_cache.cache.delete_object(KEY, "u")
    assert KEY not in notified_cache.cache
    assert notified_cache.since() == [(KEY, True)]
    assert notified_cache.cache.snapshot(KEY) is None


def test_a_list_replaces_newer_versions_after_a_restore(notified_cache: Notified) -> None:
    cache = notified_cache.cache
    cache.upsert_child(SERVICE, _child("s", version=9, spec={"x": "new"}))
    cache.upsert_object(_object(version=9, spec={"x": "new"}))
    cache.upsert_child(SERVICE, _child("s", version=3, spec={"x": "old"}))
    snapshot = cache.snapshot(KEY)
    assert snapshot is not None
    assert snapshot.children[ChildKey("Service", "s")]["spec"] == {"x": "new"}, "a watch never goes back"
    cache.upsert_child(SERVICE, _child("s", version=3, spec={"x": "old"}), listed=cache.writes)
    cache.upsert_object(_object(version=3, spec={"x": "old"}), listed=cache.writes)
    snapshot = cache.snapshot(KEY)
    assert snapshot is not None
    assert (snapshot.children[ChildKey("Service", "s")]["spec"], snapshot.body["spec"]) == ({"x": "old"}, {"x": "old"})


def test_a_list_does_not_undo_a_write_that_it_has_not_seen(notified_cache: Notified) -> None:
    cache = notified_cache.cache
    began = cache.writes
    cache.upsert_child(SERVICE, _child("s", version=9, spec={"x": "written"}), own=True)
    cache.upsert_child(SERVICE, _child("s", version=3, spec={"x": "old"}), listed=began)
    snapshot = cache.snapshot(KEY)
    assert snapshot is not None
    assert snapshot.children[ChildKey("Service", "s")]["spec"] == {"x": "written"}


def test_a_list_removes_objects_that_no_event_reported(notified_cache: Notified) -> None:
    notified_cache.cache.remove_objects({KEY: 0, Key("ns", "other"): 1})
    assert KEY in notified_cache.cache, "an object that is younger than the list stays"
    notified_cache.cache.remove_objects({KEY: 1})
    assert KEY not in notified_cache.cache


def test_large_objects_are_not_kept() -> None:
    noise = random.Random(1).randbytes(2**20).hex()
    cache = Cache(lambda key, spec_changed: None)
    large = Record.of(_object(version=1, spec={"noise": noise}, status={"url": "u"}))
    assert len(large.packed) < 2000
    assert (large.large, large.body()["status"]) == (True, {"url": "u"})
    assert len(Record.of({**_child("s", version=1, spec={"noise": noise}), "kind": "Service"}).packed) < 2000
    assert len(Record.of(_object(version=1, spec={"noise": noise[: 2**17]})).packed) > 2**16
    cache.upsert_object(_object(version=1, spec={"noise": noise}))
    snapshot = cache.snapshot(KEY)
    assert snapshot is not None
    assert "write one of at most 256 KiB" in plan(snapshot, Installation("g")).invalid


def test_a_list_removes_missing_children(notified_cache: Notified) -> None:
    for number, kind in enumerate((SERVICE, SERVICE, DEPLOYMENT)):
        notified_cache.cache.upsert_child(kind, _child(f"x{number}", version=number + 2))
    notified_cache.since()
    notified_cache.cache.retain_children(SERVICE, "elsewhere", set())
    assert notified_cache.since() == []
    notified_cache.cache.retain_children(SERVICE, "ns", {("ns", "x1")})
    assert notified_cache.since() == [(KEY, False)]
    snapshot = notified_cache.cache.snapshot(KEY)
    assert snapshot is not None
    assert set(snapshot.children) == {ChildKey("Service", "x1"), ChildKey("Deployment", "x2")}


@pytest.mark.parametrize(("kind", "kept"), [("Deployment", True), (KIND, True), ("Service", False)])
def test_unused_fields_are_trimmed(kind: str, kept: bool) -> None:
    body = trimmed({**_object(version=1, status={"x": 1}), "kind": kind})
    assert ("status" in body) is kept
    assert "managedFields" not in body["metadata"]
    assert body["metadata"]["annotations"] == {"mine": "1"}


def test_repr_counts_the_contents(notified_cache: Notified) -> None:
    notified_cache.cache.upsert_child(SERVICE, _child("s", version=5))
    assert repr(notified_cache.cache) == "<Cache: 1 objects, 1 children>"
