"""Manifests of side services."""

import json
from typing import Any

import pytest

from pdx_api.render.engines import pairing_revision
from pdx_operator.render.objects import app_labels
from tests.unit.operator.render.manifests_of import (
    children_of,
    container_of,
    deployment_of,
    env_of,
    manifests_of,
    mounts_of,
    rendered,
)

LMCACHE = {"connector": "LMCache", "poolSize": "8Gi"}


def test_a_side_service_is_a_deployment_and_a_service_of_the_revision() -> None:
    deployment = deployment_of(kvTransfer=LMCACHE, engine={"image": "mine:1", "imagePullPolicy": "Never"})
    revision, created = pairing_revision(deployment.spec), children_of(deployment)
    kinds = [(m["kind"], m["metadata"]["name"]) for m in manifests_of(deployment)]
    server = ("Deployment", f"qwen-lmcache-{revision}")
    assert kinds.index(server) < kinds.index(("Deployment", f"qwen-prefill-{revision}")), (
        "made with the engines, not behind them"
    )
    manifest, service = created["Deployment", "lmcache"], created["Service", "lmcache"]
    container = container_of(manifest)
    assert (container["image"], container["imagePullPolicy"], container["command"]) == ("mine:1", "Never", ["lmcache"])
    assert " ".join(container["args"]).endswith("--chunk-size 128 --eviction-policy LRU --l1-size-gb 8")
    assert container["resources"] == {"requests": {"memory": str(10 * 2**30)}}
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthcheck", "port": "admin"}
    labels = {"pdx.dev/deployment": "qwen", "pdx.dev/service": "lmcache", "pdx.dev/revision": revision}
    assert manifest["spec"]["replicas"] == 1
    assert manifest["spec"]["strategy"] == {"type": "Recreate"}
    assert (manifest["spec"]["template"]["metadata"]["labels"], service["spec"]["selector"]) == (
        app_labels(labels),
        labels,
    )
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]}["requests"] == 5555


def test_engines_get_the_address_of_their_side_service() -> None:
    deployment = deployment_of(kvTransfer=LMCACHE)
    for role in ("prefill", "decode"):
        engines = children_of(deployment)["Deployment", role]
        config = next(arg for arg in container_of(engines)["args"] if "LMCacheMPConnector" in arg)
        assert f'"lmcache.mp.host": "tcp://qwen-lmcache-{pairing_revision(deployment.spec)}"' in config
        assert env_of(engines)["LMCACHE_MP_TRANSFER_MODE"] == "engine_driven"


def test_only_engines_reach_a_side_service() -> None:
    policy = rendered(kvTransfer=LMCACHE)["NetworkPolicy", "services"]["spec"]
    assert policy["podSelector"]["matchExpressions"] == [{"key": "pdx.dev/service", "operator": "Exists"}]
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchExpressions"][0]["key"] == "pdx.dev/role"


def test_an_overlay_changes_the_pods_of_side_services_and_no_engine() -> None:
    overlay = {"spec": {"imagePullSecrets": [{"name": "registry"}], "containers": [{"name": "service", "env": []}]}}
    plain, laid = (deployment_of(kvTransfer=LMCACHE | more) for more in ({}, {"podTemplate": overlay}))
    before, after = children_of(plain), children_of(laid)
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} == {("Deployment", "lmcache")}
    pod = after["Deployment", "lmcache"]["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["containers"] == before["Deployment", "lmcache"]["spec"]["template"]["spec"]["containers"]


@pytest.mark.parametrize("spec", [{}, {"mode": "Aggregated", "kvTransfer": LMCACHE}])
def test_no_side_service_without_need(spec: dict[str, Any]) -> None:
    names = {name for _, name in rendered(**spec)}
    assert names & {"lmcache", "services"} == set()


def test_the_size_of_the_pool_starts_no_engine_anew() -> None:
    one, other = (deployment_of(kvTransfer={**LMCACHE, "poolSize": size}) for size in ("8Gi", "9Gi"))
    assert pairing_revision(one.spec) == pairing_revision(other.spec)
    before, after = children_of(one), children_of(other)
    assert before["Deployment", "prefill"] == after["Deployment", "prefill"]
    assert before["Deployment", "lmcache"] != after["Deployment", "lmcache"]


LMCACHE_P2P = {"connector": "LMCacheP2P", "poolSize": "8Gi"}


def test_a_sidecar_starts_before_its_engine() -> None:
    deployment = deployment_of(kvTransfer=LMCACHE_P2P, engine={"image": "mine:1"})
    created, revision = children_of(deployment), pairing_revision(deployment.spec)
    assert {name for kind, name in created if kind == "Deployment"} == {"prefill", "decode", "gateway", "peers"}
    for role in ("prefill", "decode"):
        (server,) = created["Deployment", role]["spec"]["template"]["spec"]["initContainers"]
        assert (server["name"], server["image"], server["restartPolicy"]) == ("lmcache", "mine:1", "Always")
        assert (server["command"], server["env"][0]["name"]) == (["sh"], "POD_IP")
        command = " ".join(server["args"])
        assert '$$(date +%s)://$0" $(POD_IP):5556 lmcache server' in command, (
            "only the address is Kubernetes' to expand"
        )
        assert f"--coordinator-url http://qwen-peers-{revision}:9300 " in command
        assert "--host $(POD_IP) --port 5555 " in command
        assert server["startupProbe"]["httpGet"] == {"path": "/healthcheck", "port": "admin"}
        assert "readinessProbe" not in server, "an engine serves without it"
        assert server["resources"] == {"requests": {"memory": str(10 * 2**30)}}
        config = next(arg for arg in container_of(created["Deployment", role])["args"] if "LMCacheMPConnector" in arg)
        assert '"lmcache.mp.host": "tcp://$(POD_IP)"' in config
    coordinator = container_of(created["Deployment", "peers"])
    assert coordinator["resources"] == {"requests": {"memory": str(2**30)}}, "it holds no KV"


def test_a_sidecar_expands_the_pods_address() -> None:
    env = [{"name": "UCX_HOST", "value": "$(POD_IP) $(HOME)"}]
    created = children_of(deployment_of(kvTransfer=LMCACHE_P2P, engine={"env": env}))
    pod = created["Deployment", "decode"]["spec"]["template"]["spec"]
    variable = {"name": "UCX_HOST", "value": "$(POD_IP) $$(HOME)"}
    assert variable in pod["initContainers"][0]["env"]
    assert variable in container_of(created["Deployment", "decode"])["env"]


def test_the_pool_size_of_sidecars_restarts_engines_in_place() -> None:
    one, other = (deployment_of(kvTransfer={**LMCACHE_P2P, "poolSize": size}) for size in ("8Gi", "9Gi"))
    assert pairing_revision(one.spec) == pairing_revision(other.spec)
    before, after = (children_of(each)["Deployment", "prefill"]["metadata"]["annotations"] for each in (one, other))
    assert before["pdx.dev/inputs"] != after["pdx.dev/inputs"]


@pytest.mark.parametrize(
    ("transfer", "policy"), [(LMCACHE, "services"), (LMCACHE_P2P, "engines")], ids=["its own pod", "the engine's pod"]
)
def test_scrapers_reach_the_metrics_of_side_services(transfer: dict[str, Any], policy: str) -> None:
    source = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    created = rendered(kvTransfer=transfer, observability={"scrapeFrom": [source]})
    rule = {
        "from": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
        "ports": [{"protocol": "TCP", "port": 9464}],
    }
    assert rule in created["NetworkPolicy", policy]["spec"]["ingress"]
    assert all("9464" not in str(rendered(kvTransfer=transfer)["NetworkPolicy", name]) for name in ("engines", policy))


STORE = {"connector": "MooncakeStore", "poolSize": "8Gi"}


def _file_of(engines: dict[str, Any]) -> dict[str, Any]:
    """The file that the connector reads in the pod."""
    path = env_of(engines)["MOONCAKE_CONFIG_PATH"]
    (item,) = mounts_of(engines)[path.rpartition("/")[0]]["downwardAPI"]["items"]
    assert item["path"] == path.rpartition("/")[2]
    annotations = engines["spec"]["template"]["metadata"]["annotations"]
    name = item["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['").removesuffix("']")
    found: dict[str, Any] = json.loads(annotations[name])
    return found


def test_a_connectors_file_is_an_annotation_that_the_pod_mounts() -> None:
    deployment = deployment_of(kvTransfer=STORE)
    created = children_of(deployment)
    master = f"qwen-mooncake-{pairing_revision(deployment.spec)}:50051"
    prefill, decode = _file_of(created["Deployment", "prefill"]), _file_of(created["Deployment", "decode"])
    assert prefill["master_server_address"] == decode["master_server_address"] == master
    assert (prefill["mode"], prefill["global_segment_size"]) == ("embedded", 8 * 2**30)
    assert (decode["mode"], decode["global_segment_size"]) == ("standalone-store", 0)
    assert container_of(created["Deployment", "mooncake"])["command"] == ["mooncake_master"]
    memory = container_of(created["Deployment", "mooncake"])["resources"]["requests"]["memory"]
    assert memory == str(2**30), "the pool is the engines' memory"


def test_a_pool_of_the_engines_restarts_those_that_hold_it() -> None:
    one, other = (children_of(deployment_of(kvTransfer={**STORE, "poolSize": size})) for size in ("8Gi", "9Gi"))
    changed = {key for key in one if one[key] != other[key]}
    assert changed == {("Deployment", "prefill")}
    inputs = [each["Deployment", "prefill"]["metadata"]["annotations"]["pdx.dev/inputs"] for each in (one, other)]
    assert inputs[0] != inputs[1]


def test_no_master_if_the_user_names_one() -> None:
    created = rendered(kvTransfer={**STORE, "config": {"master_server_address": "pool.llm:50051", "cache_prefix": "a"}})
    assert not {"mooncake", "services"} & {name for _, name in created}
    assert _file_of(created["Deployment", "decode"])["master_server_address"] == "pool.llm:50051"
    (config,) = [
        arg for arg in container_of(created["Deployment", "decode"])["args"] if "MooncakeStoreConnector" in arg
    ]
    assert json.loads(config)["kv_connector_extra_config"]["cache_prefix"] == "a"


@pytest.mark.parametrize("transfer", [LMCACHE, LMCACHE_P2P])
def test_an_empty_master_setting_is_ignored(transfer: dict[str, Any]) -> None:
    assert rendered(kvTransfer={**transfer, "config": {"": 1}}).keys() == rendered(kvTransfer=transfer).keys()
