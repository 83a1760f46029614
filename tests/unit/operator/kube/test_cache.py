"""The store: what the watches and the operator's own writes leave in it, and who is woken."""

from typing import Any

import pytest

from pdx_api.names import API_VERSION, KIND, LABEL_DEPLOYMENT
from pdx_operator.kube.cache import ChildKey, Key, Store, trimmed
from pdx_operator.kube.resources import KIND_OF

KEY = Key("ns", "m")
DEPLOYMENT, SERVICE = KIND_OF["Deployment"], KIND_OF["Service"]


class Woken:
    """A store, and whom it woke since it was last asked."""

    def __init__(self) -> None:
        self.woken: list[tuple[Key, bool]] = []
        self.store = Store(lambda key, urgent: self.woken.append((key, urgent)))

    def since(self) -> list[tuple[Key, bool]]:
        woken, self.woken = self.woken, []
        return woken


@pytest.fixture
def seen() -> Woken:
    woken = Woken()
    woken.store.put_object(_object(version=1))
    woken.since()
    return woken


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


def test_a_new_object_is_urgent_and_its_status_is_not() -> None:
    woken = Woken()
    woken.store.put_object(_object(version=1))
    assert woken.since() == [(KEY, True)]
    woken.store.put_object(_object(version=2, status={"x": 1}))
    assert woken.since() == [(KEY, False)]
    woken.store.put_object(_object(version=3, generation=2))
    assert woken.since() == [(KEY, True)]


def test_what_the_operator_wrote_wakes_nobody_when_the_watch_brings_it(seen: Woken) -> None:
    seen.store.put_child(SERVICE, _child("s", version=5), own=True)
    seen.store.put_child(SERVICE, _child("s", version=5))
    seen.store.put_child(SERVICE, _child("s", version=4, spec={"old": True}))
    assert seen.since() == []
    snapshot = seen.store.snapshot(KEY)
    assert snapshot is not None
    assert "spec" not in snapshot.children[ChildKey("Service", "s")]


def test_a_spec_that_comes_with_the_answer_to_a_write_is_not_missed(seen: Woken) -> None:
    seen.store.put_object(_object(version=3, generation=2, status={"x": 1}), own=True)
    assert seen.since() == [(KEY, True)]
    seen.store.put_object(_object(version=2, generation=2))
    assert seen.since() == []


def test_a_child_of_another_is_told_of_on_both_sides(seen: Woken) -> None:
    seen.store.put_child(SERVICE, _child("s", version=5))
    seen.since()
    seen.store.put_child(SERVICE, _child("s", version=6, owner="other"))
    assert seen.since() == [(KEY, False), (Key("ns", "other"), False)]
    snapshot = seen.store.snapshot(KEY)
    assert snapshot is not None
    assert not snapshot.children


def test_a_deletion_of_a_former_child_leaves_the_present_one(seen: Woken) -> None:
    seen.store.put_child(SERVICE, _child("s", version=5, uid="new"))
    seen.since()
    seen.store.drop_child("ns", ChildKey("Service", "s"), "old")
    assert seen.since() == []
    seen.store.drop_child("ns", ChildKey("Service", "s"), "new")
    assert seen.since() == [(KEY, False)]


def test_a_deletion_of_a_former_object_leaves_the_present_one(seen: Woken) -> None:
    seen.store.drop_object(KEY, "another")
    assert KEY in seen.store
    seen.store.drop_object(KEY, "u")
    assert KEY not in seen.store
    assert seen.since() == [(KEY, True)]
    assert seen.store.snapshot(KEY) is None


def test_a_list_forgets_what_it_does_not_name(seen: Woken) -> None:
    for number, kind in enumerate((SERVICE, SERVICE, DEPLOYMENT)):
        seen.store.put_child(kind, _child(f"x{number}", version=number + 2))
    seen.since()
    seen.store.keep_children(SERVICE, "elsewhere", set())
    assert seen.since() == []
    seen.store.keep_children(SERVICE, "ns", {("ns", "x1")})
    assert seen.since() == [(KEY, False)]
    snapshot = seen.store.snapshot(KEY)
    assert snapshot is not None
    assert set(snapshot.children) == {ChildKey("Service", "x1"), ChildKey("Deployment", "x2")}


@pytest.mark.parametrize(("kind", "kept"), [("Deployment", True), (KIND, True), ("Service", False)])
def test_only_what_is_read_is_kept(kind: str, kept: bool) -> None:
    body = trimmed({**_object(version=1, status={"x": 1}), "kind": kind})
    assert ("status" in body) is kept
    assert "managedFields" not in body["metadata"]
    assert body["metadata"]["annotations"] == {"mine": "1"}


def test_a_store_says_what_it_holds(seen: Woken) -> None:
    seen.store.put_child(SERVICE, _child("s", version=5))
    assert repr(seen.store) == "<Store: 1 objects, 1 children>"
