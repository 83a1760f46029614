"""Reading an endpoint from a pod, by tables. No JSON makes it raise."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.custom import Custom
from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.discovery.pods import Pods, UnusablePod, read_pod

POD: dict[str, Any] = {
    "metadata": {
        "name": "tiny-prefill-abc-1",
        "uid": "u",
        "labels": {"pdx.dev/deployment": "tiny", "pdx.dev/role": "prefill", "pdx.dev/revision": "abc"},
        "annotations": {"pdx.dev/connector": "NIXL", "pdx.dev/order": "DecodeFirst"},
    },
    "spec": {"containers": [{"name": "engine", "ports": [{"name": "http", "containerPort": 8000}]}]},
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.7",
        "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "engine", "restartCount": 1, "containerID": "c"}],
    },
}
SPEC = EndpointSpec(
    Address("10.0.0.7", 8000), Role.PREFILL, "abc", "NIXL", Order.DECODE_FIRST, "tiny-prefill-abc-1", "u/c/1"
)
CUSTOM = {"pdx.dev/connector": "Custom", "pdx.dev/order": "PrefillFirst"}
GONE = type("Gone", (), {"__repr__": lambda _: "gone"})()


def changed(*changes: tuple[str, Any]) -> dict[str, Any]:
    """The pod with other values at these paths; GONE removes the field."""
    pod = copy.deepcopy(POD)
    for path, value in changes:
        *parents, last = path.split(" ")
        target: Any = pod
        for part in parents:
            target = target[int(part) if isinstance(target, list) else part]
        if value is GONE:
            del target[last]
        else:
            target[last] = value
    return pod


def test_a_running_pod_is_an_endpoint() -> None:
    assert read_pod(POD) == SPEC


ROLE, CONNECTOR = "metadata labels pdx.dev/role", "metadata annotations pdx.dev/connector"
ORDER, REVISION = "metadata annotations pdx.dev/order", "metadata labels pdx.dev/revision"

FIELDS: list[tuple[tuple[str, Any], dict[str, Any]]] = [
    (("status podIP", "fd00::7"), {"address": Address("fd00::7", 8000)}),
    (("metadata annotations pdx.dev/data-parallel", "8"), {"ranks": 8}),
    (("metadata annotations pdx.dev/patch-releases", "any"), {"any_patch": True}),
    (("metadata annotations pdx.dev/max-num-seqs", "512"), {"sequences": 512, "runs": 512}),
    (
        ("metadata annotations", {**CUSTOM, "pdx.dev/protocol": Custom().protocol}),
        {"connector": "Custom", "order": Order.PREFILL_FIRST, "protocol": Custom().protocol},
    ),
    (
        ("spec containers 0 ports", [{"name": "side", "containerPort": 1}, {"name": "http", "containerPort": 9}]),
        {"address": Address("10.0.0.7", 9)},
    ),
    (("spec containers 0 ports", GONE), {"address": Address("10.0.0.7", 8000)}),
    ((ROLE, "decode"), {"role": Role.DECODE}),
    ((REVISION, "other"), {"revision": "other"}),
    ((ORDER, "PrefillFirst"), {"order": Order.PREFILL_FIRST}),
    (("metadata uid", "another"), {"instance": "another/c/1"}),
    (("status containerStatuses 0 restartCount", 2), {"instance": "u/c/2"}),
    (("status containerStatuses 0 containerID", "d"), {"instance": "u/d/1"}),
    (("status containerStatuses 0 name", "sidecar"), {"instance": "u//0"}),
    (("status containerStatuses", GONE), {"instance": "u//0"}),
    (("status conditions 1 status", "False"), {"ready": False}),
    (("status conditions 1 status", "Unknown"), {"ready": False}),
    (("status conditions", GONE), {"ready": False}),
    (("metadata deletionTimestamp", "2030-01-01T00:00:00Z"), {"leaving": True}),
    (("status phase", "Unknown"), {}),
]


@pytest.mark.parametrize(("change", "fields"), FIELDS, ids=[case[0][0] for case in FIELDS])
def test_a_field_is_read(change: tuple[str, Any], fields: dict[str, Any]) -> None:
    found = read_pod(changed(change))
    assert isinstance(found, EndpointSpec)
    assert {name: getattr(found, name) for name in fields} == fields
    for name in ("address", "role", "revision", "order", "instance", "ready", "leaving"):
        assert name in fields or getattr(found, name) == getattr(SPEC, name)


@pytest.mark.parametrize(
    ("reason", "engine", "ready"),
    [("ContainersNotReady", True, True), ("ContainersNotReady", False, False), (None, True, False)],
    ids=["sidecar", "engine", "node"],
)
def test_a_sidecar_that_restarts_leaves_the_engine_ready(reason: str | None, engine: bool, ready: bool) -> None:
    condition = {"type": "Ready", "status": "False", "reason": reason}
    sidecars = [{"name": "lmcache", "ready": False, "restartCount": 1}]
    found = read_pod(
        changed(
            ("status conditions", [condition]),
            ("status containerStatuses 0 ready", engine),
            ("status initContainerStatuses", sidecars),
        )
    )
    assert isinstance(found, EndpointSpec)
    assert (found.ready, found.instance) == (ready, SPEC.instance)


def test_an_aggregated_pod_needs_no_connector() -> None:
    found = read_pod(changed((ROLE, "aggregated"), ("metadata annotations", GONE)))
    assert isinstance(found, EndpointSpec)
    assert (found.role, found.connector) == (Role.AGGREGATED, "")


def test_a_restart_of_another_container_does_not_count() -> None:
    statuses = [{"name": "proxy", "restartCount": 9, "containerID": "x"}, *POD["status"]["containerStatuses"]]
    assert read_pod(changed(("status containerStatuses", statuses))) == SPEC


REASONS: list[tuple[tuple[str, Any], str, bool]] = [
    (("status podIP", GONE), "has no IP yet", True),
    (("status podIP", ""), "has no IP yet", True),
    (("status", GONE), "has no IP yet", True),
    (("status phase", "Failed"), "has ended (Failed)", True),
    (("status phase", "Succeeded"), "has ended (Succeeded)", True),
    ((ROLE, GONE), "has no label pdx.dev/role", False),
    ((ROLE, "gateway"), "has the role 'gateway', which this gateway does not support", False),
    ((REVISION, GONE), "has no label pdx.dev/revision", False),
    ((CONNECTOR, GONE), "has no annotation pdx.dev/connector", False),
    ((ORDER, GONE), "has no annotation pdx.dev/order", False),
    (("metadata annotations", GONE), "has no annotation pdx.dev/connector", False),
    ((ORDER, "Sideways"), "has the order 'Sideways', which this gateway does not support", False),
    (
        ("metadata annotations pdx.dev/data-parallel", "0"),
        "has '0' data-parallel ranks, which is no number from 1 to 64",
        False,
    ),
    (
        ("metadata annotations pdx.dev/max-num-seqs", "1000000"),
        "has '1000000' sequences, which is no number from 1 to 999999",
        False,
    ),
    (
        ("metadata annotations pdx.dev/data-parallel", "two"),
        "has 'two' data-parallel ranks, which is no number from 1 to 64",
        False,
    ),
    (
        (CONNECTOR, "Pigeon"),
        "has a wiring that this gateway does not support: connector 'Pigeon' does not exist; write one of: "
        f"{', '.join(CONNECTORS)}",
        False,
    ),
    (
        ("metadata annotations", {**CUSTOM, "pdx.dev/protocol": "?"}),
        "has a wiring that this gateway does not support: the protocol of connector Custom is '?'; write JSON, for "
        'example {"family": "Pull"}',
        False,
    ),
]


@pytest.mark.parametrize(("change", "reason", "expected"), REASONS, ids=[f"{c[0][0]}-{c[0][1]}" for c in REASONS])
def test_why_a_pod_is_unusable(change: tuple[str, Any], reason: str, expected: bool) -> None:
    assert read_pod(changed(change)) == UnusablePod(reason, expected)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
PATHS = [case[0][0] for case in FIELDS] + [case[0][0] for case in REASONS]


@given(st.sampled_from([*PATHS, "metadata", "spec", "spec containers", "spec containers 0 ports"]), JSON)
def test_any_json_is_read(path: str, value: Any) -> None:
    assert isinstance(read_pod(changed((path, value))), EndpointSpec | UnusablePod)


def test_pods_are_added_changed_and_removed() -> None:
    logged: list[str] = []
    sent: list[list[EndpointSpec]] = []
    pods = Pods(logged.append, lambda specs: sent.append(list(specs)))

    def replace(*listed: dict[str, Any]) -> None:
        pods.begin()
        for pod in listed:
            pods.put(pod)
        pods.end()

    replace(POD, changed(("metadata name", "other"), (ORDER, GONE)))
    assert sent == [[SPEC]]
    assert logged == ["pod other has no annotation pdx.dev/order; it is not used"]
    pods.put(changed(("metadata deletionTimestamp", "now")))
    assert [spec.leaving for spec in sent[-1]] == [True]
    pods.put(changed(("metadata name", "other"), (ORDER, GONE)))
    pods.begin()  # a list whose second page fails
    pods.put(changed(("metadata name", "third"), (ORDER, GONE)))
    assert len(logged) == 1, "it may be gone when the list is complete"
    replace(changed(("metadata name", "other"), (ORDER, GONE)))
    assert sent[-1] == []
    assert len(logged) == 1, "logged once"
    pods.put(changed(("metadata name", "other")))
    assert [spec.name for spec in sent[-1]] == ["other"]
    pods.begin()
    pods.begin()
    pods.put(POD)
    assert [spec.name for spec in sent[-1]] == ["other"], "the list may fail"
    pods.end()
    assert sent[-1] == [SPEC]
    for name in (POD["metadata"]["name"], "nobody"):
        pods.delete(changed(("metadata name", name)))
    assert sent[-1] == []
