"""The operator is killed, the API server goes away, objects are wrong: everything ends where it should."""

import random
import time
import urllib.error
from functools import partial
from typing import Any

import pytest

from pdx_api.kube.kinds import KIND_OF, PDDEPLOYMENT, POD, Kind
from pdx_cluster.app.cluster import Cluster
from tests.cluster.runtime.conftest import StartOperator
from tests.cluster.runtime.harness import CHILDREN, GRACE, Api, Operator, essence, eventually, kubelets

pytestmark = pytest.mark.timeout(300)

PHASES: dict[str, dict[str, Any] | None] = {
    "create": {},
    "update": {"gateway": {"workers": 2}, "decode": {"resources": {"requests": {"cpu": "1m"}}}},
    "roll out": {"engine": {"dtype": "float32"}},
    "scale": {"prefill": {"replicas": 0}, "decode": {"replicas": 2}},
    "delete": None,
}


def test_five_kills_change_nothing_about_the_end(
    api: Api, start_operator: StartOperator, namespace: str, control_plane: Cluster
) -> None:
    """One kill in each phase. In `make soak` the operator that follows is killed too."""
    _killed(api, start_operator, namespace, control_plane, kills=1, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 3, 4, 5, 6])
def test_fifty_kills_change_nothing_about_the_end(
    api: Api, start_operator: StartOperator, namespace: str, control_plane: Cluster, seed: int
) -> None:
    _killed(api, start_operator, namespace, control_plane, kills=2, seed=seed)


def _killed(
    api: Api, start_operator: StartOperator, namespace: str, cluster: Cluster, *, kills: int, seed: int
) -> None:
    """Every phase once undisturbed, then with kills at random moments: the ends are equal."""
    chance = random.Random(seed)
    calm = f"{namespace}-c"[-60:].strip("-")
    cluster.kubectl("create", "namespace", calm)
    try:
        start_operator("--namespace", calm)
        with kubelets(api, calm), kubelets(api, namespace):
            for phase, change in PHASES.items():
                _begin(api, calm, change)
                expected = eventually(partial(_end, api, calm, change is None), what=phase)
                for kill in range(kills):
                    operator = start_operator("--namespace", namespace)
                    if kill == 0:
                        # It is at work when the change comes; later it begins with what it finds.
                        _begin(api, namespace, change)
                    time.sleep(chance.uniform(0, 1.2))
                    operator.kill()
                if change is not None:
                    operator = start_operator("--namespace", namespace)
                try:
                    eventually(partial(_ended, api, namespace, change is None, expected), what=phase)
                except AssertionError:
                    pytest.fail(f"{phase}: {_difference(api, namespace, expected)}")
                operator.kill()
                assert len(_uids(api, namespace)) == (0 if expected is True else len(expected))
            eventually(lambda: not api.items(POD, namespace), what="no pods")
    finally:
        cluster.kubectl("delete", "namespace", calm, "--wait=false")


def _begin(api: Api, namespace: str, change: dict[str, Any] | None) -> None:
    if change is None:
        api.delete(PDDEPLOYMENT, namespace, "m")
    elif change:
        api.change(namespace, change)
    else:
        api.deploy(namespace)


def _end(api: Api, namespace: str, gone: bool) -> dict[tuple[str, str], object] | bool | None:
    """What exists once everything has settled; None before. A deleted object ends with nothing (True, to be true)."""
    children = api.children(namespace)
    if gone:
        return not children or None
    progressing = api.condition(namespace, "Progressing")
    rests = api.is_ready(namespace) and progressing["status"] == "False" and len(children) == CHILDREN
    return essence(children) if rests else None


def _ended(api: Api, namespace: str, gone: bool, expected: object) -> bool:
    return _end(api, namespace, gone) == expected


def _difference(api: Api, namespace: str, expected: object) -> str:
    """What keeps the end from being the expected one: children, and the status."""
    found, desired = essence(api.children(namespace)), expected if isinstance(expected, dict) else {}
    differing = [key for key in {**found, **desired} if found.get(key) != desired.get(key)]
    texts = [f"{key}:\n  {found.get(key)}\n  {desired.get(key)}" for key in differing]
    return "\n".join([*texts, str(api.status(namespace))])


def _uids(api: Api, namespace: str) -> set[str]:
    return {child["metadata"]["uid"] for child in api.children(namespace).values()}


@pytest.mark.parametrize("down", [pytest.param(0.0, marks=pytest.mark.soak), 3.0])
def test_the_api_server_is_restarted_under_it(
    api: Api, start_operator: StartOperator, namespace: str, control_plane: Cluster, down: float
) -> None:
    """It is away for `down` seconds, and then until after the operator's end."""
    operator = start_operator()
    with kubelets(api, namespace):
        api.deploy(namespace)
        eventually(lambda: api.is_ready(namespace), what="ready")
        control_plane.restart_apiserver(down)
        api.deploy(namespace, "new")
        eventually(lambda: api.is_ready(namespace, "new"), what="a new one ready")
        api.delete(KIND_OF["Service"], namespace, "m-gateway")
        eventually(lambda: len(api.children(namespace)) == CHILDREN, what="all children")
        control_plane.stop_apiserver()
        time.sleep(2)
        assert operator.process.poll() is None
        assert operator.end() < GRACE / 2
        control_plane.start_apiserver()
        # Kubernetes' own controllers come back more slowly; the next test relies on them.
        start_operator()
        api.deploy(namespace, "last")
        eventually(lambda: api.is_ready(namespace, "last"), within=90, what="controllers at work")


@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        ({"priorityClassName": "Not A Name", "restartPolicy": "Sometimes"}, "restartPolicy"),
        ({"tolerationz": []}, "tolerationz: field not declared in schema"),
        ({"containers": [{"name": "engine", "env": [{"name": "A", "value": 1}]}]}, "expected string"),
    ],
    ids=["wrong value", "misspelt field", "wrong type"],
)
def test_an_overlay_that_the_api_server_refuses_is_a_condition(
    api: Api, operator: Operator, namespace: str, overlay: dict[str, Any], message: str
) -> None:
    wrong = {"podTemplate": {"spec": overlay}}
    with kubelets(api, namespace):
        api.deploy(
            namespace, spec={"model": {"name": "m"}, "prefill": {"replicas": 1, **wrong}, "decode": {"replicas": 1}}
        )
        eventually(lambda: api.condition(namespace, "Degraded").get("status") == "True", what="degraded")
        assert message in api.condition(namespace, "Degraded")["message"]
        # All other children exist, and an Event reports them.
        assert ("Deployment", "m-gateway") in api.children(namespace)
        eventually(lambda: {"Created", "ChildRejected"} <= {e["reason"] for e in api.events(namespace)}, what="events")
        attempts = operator.text().count(message)
        api.change(namespace, {"prefill": {"podTemplate": None}})
        eventually(lambda: api.is_ready(namespace), what="ready")
        assert attempts < 10


def test_an_object_that_only_the_operator_can_judge_is_a_condition(
    api: Api, operator: Operator, namespace: str
) -> None:
    overlay = {"podTemplate": {"spec": {"containers": [{"name": "engine", "$patch": "delete"}]}}}
    with kubelets(api, namespace):
        api.deploy(
            namespace, spec={"model": {"name": "m"}, "prefill": {"replicas": 1, **overlay}, "decode": {"replicas": 1}}
        )
        ready = eventually(lambda: api.condition(namespace, "Ready"), what="Ready")
        assert ready["status"] == "False"
        assert ready["reason"] == "InvalidSpec"
        assert "engine" in ready["message"]
        api.change(namespace, {"prefill": {"podTemplate": None}})
        eventually(lambda: api.is_ready(namespace), what="ready")


def test_an_object_of_somebody_else_is_not_taken_over(api: Api, operator: Operator, namespace: str) -> None:
    service, account = KIND_OF["Service"], KIND_OF["ServiceAccount"]
    spec = {"ports": [{"port": 80}], "selector": {"app": "theirs"}}
    theirs = api.create(service, namespace, {"metadata": {"name": "m-gateway"}, "spec": spec})
    api.create(account, namespace, {"metadata": {"name": "m-gateway"}})
    with kubelets(api, namespace):
        api.deploy(namespace)
        eventually(lambda: api.condition(namespace, "Degraded").get("status") == "True", what="degraded")
        assert "m-gateway" in api.condition(namespace, "Degraded")["message"]
        assert len(api.children(namespace)) == CHILDREN - 2
        assert api.get(service, namespace, "m-gateway") == theirs
        api.delete(service, namespace, "m-gateway")
        api.delete(account, namespace, "m-gateway")
        eventually(lambda: len(api.children(namespace)) == CHILDREN, what="all children")


def test_quota_is_a_condition_and_room_is_used_when_it_comes(api: Api, operator: Operator, namespace: str) -> None:
    quotas = Kind("v1", "ResourceQuota", "resourcequotas")
    api.create(quotas, namespace, {"metadata": {"name": "none"}, "spec": {"hard": {"count/services": "0"}}})
    with kubelets(api, namespace):
        eventually(lambda: _refuses_services(api, namespace), what="quota")
        api.deploy(namespace)
        eventually(lambda: api.condition(namespace, "Degraded").get("status") == "True", what="degraded")
        assert "quota" in api.condition(namespace, "Degraded")["message"]
        assert len(api.children(namespace)) == CHILDREN - 1
        api.delete(quotas, namespace, "none")
        # The Service is tried again after at most a minute and a half; without it the pods are ready all the same.
        eventually(lambda: len(api.children(namespace)) == CHILDREN, within=120, what="all children")
        eventually(lambda: api.condition(namespace, "Degraded")["status"] == "False", what="not degraded")
        eventually(lambda: api.is_ready(namespace), what="ready")


def _refuses_services(api: Api, namespace: str) -> bool:
    """Whether the quota holds: the API server sees it a while after it exists."""
    path = f"{KIND_OF['Service'].path(namespace)}?dryRun=All"
    try:
        api.request("POST", path, {"metadata": {"name": "any"}, "spec": {"ports": [{"port": 1}]}})
    except urllib.error.HTTPError as error:
        return error.code == 403
    return False
