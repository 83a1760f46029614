"""What real nodes need of the children: overlays, RDMA, requests, start and drain times, labels, no gateway."""

from typing import Any

import pytest

from pdx_operator.render.overlay import OverlayError
from pdx_operator.render.rdma import check_rdma, is_engine
from tests.unit.operator.render.manifests_of import (
    children_of,
    container_of,
    deployment_of,
    env_of,
    manifests_of,
    pod_of,
    rendered,
)

PREFILL, DECODE, GATEWAY = (("Deployment", name) for name in ("prefill", "decode", "gateway"))
DEVICE = {"resources": {"limits": {"rdma/hca": 1}}}
ROOT_OVERLAY: dict[str, Any] = {
    "spec": {
        "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
        "containers": [{"name": "engine", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}],
    }
}


def _security(manifest: dict[str, Any]) -> tuple[Any, Any, Any]:
    pod, engine = pod_of(manifest), container_of(manifest)
    return (
        pod["securityContext"]["runAsUser"],
        engine["securityContext"]["capabilities"].get("add"),
        engine["resources"],
    )


def test_the_overlay_of_all_roles_comes_before_the_roles_own() -> None:
    shared = {"spec": {"nodeSelector": {"pool": "a", "zone": "z"}, "imagePullSecrets": [{"name": "registry"}]}}
    own = {"spec": {"nodeSelector": {"pool": "b"}}}
    made = rendered(engine={"podTemplate": shared}, prefill={}, decode={"podTemplate": own})
    assert pod_of(made[PREFILL])["nodeSelector"] == {"pool": "a", "zone": "z"}
    assert pod_of(made[DECODE])["nodeSelector"] == {"pool": "b", "zone": "z"}
    assert all(pod_of(made[role])["imagePullSecrets"] == [{"name": "registry"}] for role in (PREFILL, DECODE))
    assert "imagePullSecrets" not in pod_of(made[GATEWAY])


def test_an_error_in_the_overlay_of_all_roles_names_it() -> None:
    wrong = {"spec": {"containers": [{"name": "engine", "$patch": "delete"}]}}
    with pytest.raises(
        OverlayError, match=r"^spec\.engine\.podTemplate\.spec\.containers\[engine\] may not be removed"
    ):
        rendered(engine={"podTemplate": wrong})


def test_a_variables_value_may_come_from_elsewhere() -> None:
    secret = {"secretKeyRef": {"name": "s3", "key": "id", "optional": True}}
    shared = [
        {"name": "A", "valueFrom": secret},
        {"name": "B", "value": "1"},
        {"name": "HF_TOKEN", "valueFrom": secret},
    ]
    field = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    own = [{"name": "A", "value": "x"}, {"name": "B", "valueFrom": field}, {"name": "VLLM_HOST_IP", "valueFrom": field}]
    model = {"name": "m", "tokenSecretRef": {"name": "hub"}}
    made = rendered(model=model, engine={"env": shared}, prefill={}, decode={"env": own})
    prefill, decode = env_of(made[PREFILL]), env_of(made[DECODE])
    assert (prefill["A"], prefill["B"], prefill["HF_TOKEN"]) == (secret, "1", secret)
    assert (decode["A"], decode["B"], decode["VLLM_HOST_IP"]) == ("x", field, field)


def test_side_services_get_the_same_variables() -> None:
    source = {"secretKeyRef": {"name": "s3", "key": "id"}}
    made = rendered(engine={"env": [{"name": "A", "valueFrom": source}]}, kvTransfer={"connector": "LMCache"})
    assert env_of(made["Deployment", "lmcache"])["A"] == source


def test_engines_may_take_long_to_start() -> None:
    usual, slow = rendered()[DECODE], rendered(engine={"startupSeconds": 7201})[DECODE]
    assert container_of(usual)["startupProbe"]["failureThreshold"] * 5 == 1800
    assert container_of(slow)["startupProbe"]["failureThreshold"] * 5 == 7205
    assert slow["spec"]["progressDeadlineSeconds"] == 7801


def test_answers_of_minutes_are_finished() -> None:
    made = rendered()
    assert {pod_of(made[each])["terminationGracePeriodSeconds"] for each in (PREFILL, DECODE, GATEWAY)} == {615}
    args = container_of(made[DECODE])["args"]
    assert args[args.index("--shutdown-timeout") + 1] == "600"
    assert "--shutdown-seconds=600" in container_of(made[GATEWAY])["args"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"requests": {"cpu": "150m", "memory": "1Gi"}}),
        (
            {"limits": {"nvidia.com/gpu": 1}},
            {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "150m", "memory": "1Gi"}},
        ),
        (
            {"requests": {"ephemeral-storage": "1Gi"}},
            {"requests": {"cpu": "150m", "memory": "1Gi", "ephemeral-storage": "1Gi"}},
        ),
        ({"limits": {"memory": "64Mi"}}, {"limits": {"memory": "64Mi"}}),
        ({"requests": {"cpu": 2}}, {"requests": {"cpu": 2}}),
    ],
)
def test_no_engine_is_best_effort(given: dict[str, Any], found: dict[str, Any]) -> None:
    assert container_of(rendered(decode={"resources": given})[DECODE])["resources"] == found


def test_no_pod_is_best_effort() -> None:
    for connector in ("NIXL", "LMCache", "LMCacheP2P", "MooncakeStore"):
        gateway = {"resources": {"requests": {"ephemeral-storage": "1Gi"}}}
        for manifest in manifests_of(deployment_of(kvTransfer={"connector": connector}, gateway=gateway)):
            if manifest["kind"] == "Deployment":
                assert {"cpu", "memory"} & set(container_of(manifest)["resources"]["requests"]), manifest["metadata"][
                    "name"
                ]


def test_rdma_is_rendered_as_a_whole() -> None:
    made = rendered(
        engine={"rdma": {"resource": "rdma/ib", "count": 2}},
        prefill={},
        decode={"resources": {"limits": {"nvidia.com/gpu": 8, "rdma/ib": 8}}},
    )
    requests = {"cpu": "150m", "memory": "1Gi"}
    assert _security(made[PREFILL]) == (0, ["IPC_LOCK"], {"limits": {"rdma/ib": 2}, "requests": requests})
    limits = {"nvidia.com/gpu": 8, "rdma/ib": 8}
    assert _security(made[DECODE]) == (0, ["IPC_LOCK"], {"limits": limits, "requests": requests})
    assert not pod_of(made[DECODE])["securityContext"]["runAsNonRoot"]


def test_nodes_without_a_memlock_limit_need_no_root() -> None:
    made = rendered(engine={"rdma": {"asRoot": False}})[DECODE]
    user, added, resources = _security(made)
    assert (user, added, resources["limits"]["rdma/hca"]) == (2000, None, 1)
    deployment = deployment_of(engine={"rdma": {"asRoot": False}})
    check_rdma(deployment.spec, made)


def test_aggregated_engines_get_no_rdma() -> None:
    made = rendered(mode="Aggregated", aggregated={}, engine={"rdma": {}})["Deployment", "aggregated"]
    assert _security(made) == (2000, None, {"requests": {"cpu": "150m", "memory": "1Gi"}})


def _check(**spec: Any) -> None:
    deployment = deployment_of(**spec)
    for manifest in manifests_of(deployment):
        if is_engine(manifest):
            check_rdma(deployment.spec, manifest)


@pytest.mark.parametrize(
    "spec",
    [
        {"decode": DEVICE},
        {"decode": {"resources": {"limits": {"vpc.amazonaws.com/efa": 4}}}},
        {"engine": {"podTemplate": {"spec": {"containers": [{"name": "engine", **DEVICE}]}}}},
        {"decode": {**DEVICE, "podTemplate": {"spec": {"securityContext": {"runAsUser": 0}}}}},
        {
            "decode": {
                **DEVICE,
                "podTemplate": {"spec": {"containers": [ROOT_OVERLAY["spec"]["containers"][0]]}},
            }
        },
    ],
)
def test_half_of_rdma_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(OverlayError, match=r"engines get \S+ and could not lock memory .*write spec\.engine\.rdma"):
        _check(**spec)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"decode": DEVICE, "engine": {"rdma": {}}},
        {"decode": {**DEVICE, "podTemplate": ROOT_OVERLAY}},
        {"decode": DEVICE, "engine": {"podTemplate": ROOT_OVERLAY}},
        {
            "decode": {
                **DEVICE,
                "podTemplate": {"spec": {"containers": [{"name": "engine", "securityContext": {"privileged": True}}]}},
            }
        },
    ],
)
def test_all_of_rdma_is_accepted(spec: dict[str, Any]) -> None:
    _check(**spec)


def test_children_carry_the_users_labels_and_their_pods_do_not() -> None:
    given = {
        "labels": {"team": "a"},
        "annotations": {"cost": "1"},
        "gateway": {"service": {"annotations": {"cost": "2"}}},
    }
    plain, labelled = (
        rendered(kvTransfer={"connector": "LMCache"}),
        rendered(kvTransfer={"connector": "LMCache"}, **given),
    )
    assert plain.keys() == labelled.keys()
    for key, manifest in labelled.items():
        assert manifest["metadata"]["labels"] == {"team": "a", **plain[key]["metadata"]["labels"]}
        assert manifest["metadata"]["annotations"]["cost"] == ("2" if key == ("Service", "gateway") else "1")
        assert manifest["spec"] == plain[key]["spec"] if "spec" in manifest else True


def test_without_a_gateway_only_its_own_children_are_missing() -> None:
    usual, without = rendered(), rendered(gateway={"enabled": False})
    assert {key for key in usual if key not in without} == {key for key in usual if key[1].startswith("gateway")}
    assert without == {key: usual[key] for key in without}
    assert {kind for kind, _ in usual.keys() - without.keys()} == {
        *("Deployment", "Service", "ServiceAccount", "Role", "RoleBinding", "PodDisruptionBudget", "NetworkPolicy")
    }


def test_the_default_gateway_image_has_a_pull_policy() -> None:
    made = manifests_of(deployment_of(), gateway_pull_policy="Always")
    own = manifests_of(deployment_of(gateway={"image": "mine"}), gateway_pull_policy="Always")
    found = [
        container_of(each).get("imagePullPolicy", None)
        for created in (made, own)
        for each in created
        if each["kind"] == "Deployment" and each["metadata"]["name"] == "qwen-gateway"
    ]
    assert found == ["Always", None]


def test_replicas_that_an_autoscaler_owns_are_not_written() -> None:
    assert "replicas" not in children_of(deployment_of())[GATEWAY]["spec"]
    assert children_of(deployment_of(gateway={"replicas": 3}))[GATEWAY]["spec"]["replicas"] == 3
