"""A PDDeployment's children as Kubernetes objects."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdx_api.connectors import CONNECTORS
from pdx_api.engines import pairing_revision
from pdx_api.names import ENGINE_PORT, OPERATOR_LABELS, Mode, service_name
from pdx_api.parse import parse
from pdx_api.types import PDDeployment
from pdx_cli.main import main
from pdx_operator.manifests import children
from pdx_operator.overlay import OverlayError
from pdx_proxy.__main__ import create_parser
from tests.pddeployments import changed, custom

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").rglob("*.yaml"))
Manifests = dict[tuple[str, str], dict[str, Any]]


def _deployment(**spec: Any) -> PDDeployment:
    pools = {"prefill": {"replicas": 2}, "decode": {"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": 1}}}}
    body = {"model": {"name": "Qwen/Qwen3-8B"}, **pools, **spec}
    metadata = {"name": "qwen", "namespace": "llm"}
    return parse({"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": metadata, "spec": body})


def _children(deployment: PDDeployment) -> Manifests:
    """By kind and by name, the object's own name and the revision left out: `("Deployment", "prefill")`."""
    made = children(deployment, uid="7", gateway_image="pdx-gateway:1")
    strip = (f"{deployment.metadata.name}-", f"-{pairing_revision(deployment.spec)}")
    return {(m["kind"], m["metadata"]["name"].removeprefix(strip[0]).removesuffix(strip[1])): m for m in made}


def _rendered(**spec: Any) -> Manifests:
    return _children(_deployment(**spec))


def _pod(manifest: dict[str, Any]) -> dict[str, Any]:
    pod = manifest["spec"]["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


def _container(manifest: dict[str, Any]) -> dict[str, Any]:
    (container,) = _pod(manifest)["containers"]
    assert isinstance(container, dict)
    return container


def _env(manifest: dict[str, Any]) -> dict[str, Any]:
    env = _container(manifest)["env"]
    assert len({variable["name"] for variable in env}) == len(env)
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in env}


def _mounts(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Mount path -> volume source."""
    volumes = {v["name"]: {k: v[k] for k in v if k != "name"} for v in _pod(manifest)["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in _container(manifest)["volumeMounts"]}


def test_the_children_of_an_object() -> None:
    assert list(_rendered()) == [
        ("NetworkPolicy", "engines"),
        ("NetworkPolicy", "gateway"),
        ("Service", "prefill"),
        ("Deployment", "prefill"),
        ("Service", "decode"),
        ("Deployment", "decode"),
        ("ServiceAccount", "gateway"),
        ("Role", "gateway"),
        ("RoleBinding", "gateway"),
        ("Service", "gateway"),
        ("Deployment", "gateway"),
        ("PodDisruptionBudget", "prefill"),
        ("PodDisruptionBudget", "decode"),
        ("PodDisruptionBudget", "gateway"),
    ]


def test_every_child_can_be_found_by_label_and_goes_with_its_owner() -> None:
    for child in _rendered().values():
        metadata = child["metadata"]
        assert metadata["namespace"] == "llm"
        assert metadata["labels"]["pdx.dev/deployment"] == "qwen"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "pdx"
        (owner,) = metadata["ownerReferences"]
        assert owner == {
            "apiVersion": "pdx.dev/v1alpha1",
            "kind": "PDDeployment",
            "name": "qwen",
            "uid": "7",
            "controller": True,
        }


def test_a_deployment_and_a_headless_service_select_the_pods_of_one_role_and_revision() -> None:
    deployment = _deployment()
    made = _children(deployment)
    for role in ("prefill", "decode"):
        engines, service = made["Deployment", role], made["Service", role]
        labels = {
            "pdx.dev/deployment": "qwen",
            "pdx.dev/role": role,
            "pdx.dev/revision": pairing_revision(deployment.spec),
        }
        template = engines["spec"]["template"]["metadata"]
        assert engines["spec"]["selector"]["matchLabels"] == template["labels"] == service["spec"]["selector"] == labels
        assert template["annotations"] == {"pdx.dev/connector": "NIXL", "pdx.dev/order": "PrefillFirst"}
        assert service["spec"]["clusterIP"] == "None"


def test_a_connector_of_the_users_own_brings_its_code_and_its_protocol() -> None:
    code = {"configMap": {"name": "folder"}, "directory": "nowhere"}
    deployment = parse(changed("spec.kvTransfer", custom(code=code)))
    made = _children(deployment)
    for role in ("prefill", "decode"):
        template = made["Deployment", role]["spec"]["template"]
        assert template["metadata"]["annotations"] == {
            "pdx.dev/connector": "Custom",
            "pdx.dev/order": "PrefillFirst",
            "pdx.dev/protocol": deployment.spec.protocol,
        }
        assert {"name": "connector", "configMap": {"name": "folder"}} in template["spec"]["volumes"]
        container = _container(made["Deployment", role])
        mount = {"name": "connector", "mountPath": "/etc/pdx/connector", "readOnly": True}
        assert mount in container["volumeMounts"]
        assert {"name": "PYTHONPATH", "value": "/etc/pdx/connector"} in container["env"]


def test_replicas_resources_ports_and_probes() -> None:
    made = _rendered()
    prefill, decode = made["Deployment", "prefill"], made["Deployment", "decode"]
    assert (prefill["spec"]["replicas"], decode["spec"]["replicas"]) == (2, 1)
    assert _container(prefill)["resources"] == {}
    container = _container(decode)
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    ports = {"http": ENGINE_PORT, "side-channel": 5600}
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    assert {port["name"]: port["port"] for port in made["Service", "decode"]["spec"]["ports"]} == ports
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 1800


def test_the_pods_address_comes_before_its_users() -> None:
    made = _rendered()
    for role in ("prefill", "decode"):
        env = _container(made["Deployment", role])["env"]
        assert env[0] == {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        assert {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "$(POD_IP)"} in env[1:]


def test_what_the_user_writes_is_taken_literally() -> None:
    env = [{"name": "GREETING", "value": "$(HOME)"}, {"name": "POD_IP", "value": "mine"}]
    engines = _rendered(engine={"env": env, "args": ["--title=$(X)"]})["Deployment", "prefill"]
    assert _env(engines)["GREETING"] == "$$(HOME)"
    assert _env(engines)["POD_IP"] != "mine"
    assert "--title=$$(X)" in _container(engines)["args"]


def test_kv_storage_is_mounted_and_each_revision_has_its_directory() -> None:
    transfer = {"connector": "SharedStorage", "storage": {"persistentVolumeClaim": {"claimName": "kv-claim"}}}
    deployment = _deployment(kvTransfer=transfer)
    made = _children(deployment)
    for role in ("prefill", "decode"):
        assert _mounts(made["Deployment", role])["/kv"] == {"persistentVolumeClaim": {"claimName": "kv-claim"}}
        config = next(arg for arg in _container(made["Deployment", role])["args"] if "ExampleConnector" in arg)
        assert f'"shared_storage_path": "/kv/{pairing_revision(deployment.spec)}"' in config
        assert [port["name"] for port in _container(made["Deployment", role])["ports"]] == ["http"]
    alone = _rendered(mode="Aggregated", kvTransfer=transfer)["Deployment", "aggregated"]
    assert "/kv" not in _mounts(alone)


LMCACHE = {"connector": "LMCache", "poolSize": "8Gi"}


def test_a_side_service_is_a_deployment_and_a_service_of_the_revision() -> None:
    deployment = _deployment(kvTransfer=LMCACHE, engine={"image": "mine:1", "imagePullPolicy": "Never"})
    revision, made = pairing_revision(deployment.spec), _children(deployment)
    kinds = [(m["kind"], m["metadata"]["name"]) for m in children(deployment, uid="7", gateway_image="g:1")]
    server = ("Deployment", f"qwen-lmcache-{revision}")
    assert kinds.index(server) < kinds.index(("Deployment", f"qwen-prefill-{revision}")), "there before the engines"
    manifest, service = made["Deployment", "lmcache"], made["Service", "lmcache"]
    container = _container(manifest)
    assert (container["image"], container["imagePullPolicy"], container["command"]) == ("mine:1", "Never", ["lmcache"])
    assert " ".join(container["args"]).endswith("--chunk-size 128 --eviction-policy LRU --l1-size-gb 8")
    assert container["resources"] == {"requests": {"memory": str(10 * 2**30)}}
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthcheck", "port": "admin"}
    labels = {"pdx.dev/deployment": "qwen", "pdx.dev/service": "lmcache", "pdx.dev/revision": revision}
    assert manifest["spec"]["replicas"] == 1
    assert manifest["spec"]["strategy"] == {"type": "Recreate"}
    assert manifest["spec"]["template"]["metadata"]["labels"] == service["spec"]["selector"] == labels
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]}["requests"] == 5555


def test_engines_are_told_their_revisions_side_service() -> None:
    deployment = _deployment(kvTransfer=LMCACHE)
    for role in ("prefill", "decode"):
        engines = _children(deployment)["Deployment", role]
        config = next(arg for arg in _container(engines)["args"] if "LMCacheMPConnector" in arg)
        assert f'"lmcache.mp.host": "tcp://qwen-lmcache-{pairing_revision(deployment.spec)}"' in config
        assert _env(engines)["LMCACHE_MP_TRANSFER_MODE"] == "engine_driven"


def test_only_engines_reach_a_side_service() -> None:
    policy = _rendered(kvTransfer=LMCACHE)["NetworkPolicy", "services"]["spec"]
    assert policy["podSelector"]["matchExpressions"] == [{"key": "pdx.dev/service", "operator": "Exists"}]
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchExpressions"][0]["key"] == "pdx.dev/role"


def test_an_overlay_changes_the_pods_of_side_services_and_no_engine() -> None:
    overlay = {"spec": {"imagePullSecrets": [{"name": "registry"}], "containers": [{"name": "service", "env": []}]}}
    plain, laid = (_deployment(kvTransfer=LMCACHE | more) for more in ({}, {"podTemplate": overlay}))
    before, after = _children(plain), _children(laid)
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} == {("Deployment", "lmcache")}
    pod = after["Deployment", "lmcache"]["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["containers"] == before["Deployment", "lmcache"]["spec"]["template"]["spec"]["containers"]


@pytest.mark.parametrize("spec", [{}, {"mode": "Aggregated", "kvTransfer": LMCACHE}])
def test_who_needs_no_side_service_gets_none(spec: dict[str, Any]) -> None:
    names = {name for _, name in _rendered(**spec)}
    assert names & {"lmcache", "services"} == set()


def test_the_size_of_the_pool_starts_no_engine_anew() -> None:
    one, other = (_deployment(kvTransfer={**LMCACHE, "poolSize": size}) for size in ("8Gi", "9Gi"))
    assert pairing_revision(one.spec) == pairing_revision(other.spec)
    before, after = _children(one), _children(other)
    assert before["Deployment", "prefill"] == after["Deployment", "prefill"]
    assert before["Deployment", "lmcache"] != after["Deployment", "lmcache"]


LMCACHE_P2P = {"connector": "LMCacheP2P", "poolSize": "8Gi"}


def test_a_service_beside_each_engine_is_a_container_that_starts_before_it() -> None:
    deployment = _deployment(kvTransfer=LMCACHE_P2P, engine={"image": "mine:1"})
    made, revision = _children(deployment), pairing_revision(deployment.spec)
    assert {name for kind, name in made if kind == "Deployment"} == {"prefill", "decode", "gateway", "peers"}
    for role in ("prefill", "decode"):
        (server,) = made["Deployment", role]["spec"]["template"]["spec"]["initContainers"]
        assert (server["name"], server["image"], server["restartPolicy"]) == ("lmcache", "mine:1", "Always")
        assert (server["command"], server["env"][0]["name"]) == (["sh"], "POD_IP")
        said = " ".join(server["args"])
        assert '$$(date +%s)://$0" $(POD_IP):5556 lmcache server' in said, "only the address is Kubernetes' to expand"
        assert f"--coordinator-url http://qwen-peers-{revision}:9300 " in said
        assert "--host $(POD_IP) --port 5555 " in said
        assert server["startupProbe"]["httpGet"] == {"path": "/healthcheck", "port": "admin"}
        assert "readinessProbe" not in server, "an engine serves without it"
        assert server["resources"] == {"requests": {"memory": str(10 * 2**30)}}
        config = next(arg for arg in _container(made["Deployment", role])["args"] if "LMCacheMPConnector" in arg)
        assert '"lmcache.mp.host": "tcp://$(POD_IP)"' in config
    coordinator = _container(made["Deployment", "peers"])
    assert coordinator["resources"] == {"requests": {"memory": str(2**30)}}, "it holds no KV"


def test_the_size_of_the_pools_beside_engines_starts_them_anew_in_place() -> None:
    one, other = (_deployment(kvTransfer={**LMCACHE_P2P, "poolSize": size}) for size in ("8Gi", "9Gi"))
    assert pairing_revision(one.spec) == pairing_revision(other.spec)
    before, after = (_children(each)["Deployment", "prefill"]["metadata"]["annotations"] for each in (one, other))
    assert before["pdx.dev/inputs"] != after["pdx.dev/inputs"]


@pytest.mark.parametrize(
    ("transfer", "policy"), [(LMCACHE, "services"), (LMCACHE_P2P, "engines")], ids=["its own pod", "the engine's pod"]
)
def test_whoever_may_scrape_reads_the_metrics_of_side_services(transfer: dict[str, Any], policy: str) -> None:
    source = {"podLabels": {"app": "prometheus"}}
    made = _rendered(kvTransfer=transfer, observability={"scrapeFrom": [source]})
    rule = {
        "from": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
        "ports": [{"protocol": "TCP", "port": 9464}],
    }
    assert rule in made["NetworkPolicy", policy]["spec"]["ingress"]
    assert all("9464" not in str(_rendered(kvTransfer=transfer)["NetworkPolicy", name]) for name in ("engines", policy))


STORE = {"connector": "MooncakeStore", "poolSize": "8Gi"}


def _file_of(engines: dict[str, Any]) -> dict[str, Any]:
    """What the connector reads in the pod."""
    path = _env(engines)["MOONCAKE_CONFIG_PATH"]
    (item,) = _mounts(engines)[path.rpartition("/")[0]]["downwardAPI"]["items"]
    assert item["path"] == path.rpartition("/")[2]
    annotations = engines["spec"]["template"]["metadata"]["annotations"]
    name = item["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['").removesuffix("']")
    found: dict[str, Any] = json.loads(annotations[name])
    return found


def test_a_connectors_file_is_an_annotation_that_the_pod_mounts() -> None:
    deployment = _deployment(kvTransfer=STORE)
    made = _children(deployment)
    master = f"qwen-mooncake-{pairing_revision(deployment.spec)}:50051"
    prefill, decode = _file_of(made["Deployment", "prefill"]), _file_of(made["Deployment", "decode"])
    assert prefill["master_server_address"] == decode["master_server_address"] == master
    assert (prefill["mode"], prefill["global_segment_size"]) == ("embedded", 8 * 2**30)
    assert (decode["mode"], decode["global_segment_size"]) == ("standalone-store", 0)
    assert _container(made["Deployment", "mooncake"])["command"] == ["mooncake_master"]
    memory = _container(made["Deployment", "mooncake"])["resources"]["requests"]["memory"]
    assert memory == str(2**30), "the pool is the engines' memory"


def test_a_pool_of_the_engines_restarts_those_that_hold_it() -> None:
    one, other = (_children(_deployment(kvTransfer={**STORE, "poolSize": size})) for size in ("8Gi", "9Gi"))
    changed = {key for key in one if one[key] != other[key]}
    assert changed == {("Deployment", "prefill")}
    inputs = [each["Deployment", "prefill"]["metadata"]["annotations"]["pdx.dev/inputs"] for each in (one, other)]
    assert inputs[0] != inputs[1]


def test_who_has_a_master_gets_none() -> None:
    made = _rendered(kvTransfer={**STORE, "config": {"master_server_address": "pool.llm:50051", "cache_prefix": "a"}})
    assert not {"mooncake", "services"} & {name for _, name in made}
    assert _file_of(made["Deployment", "decode"])["master_server_address"] == "pool.llm:50051"
    (transfer,) = [arg for arg in _container(made["Deployment", "decode"])["args"] if "MooncakeStoreConnector" in arg]
    assert json.loads(transfer)["kv_connector_extra_config"]["cache_prefix"] == "a"


def test_aggregated_is_one_pool_without_connector() -> None:
    made = _rendered(mode="Aggregated")
    engines = made["Deployment", "aggregated"]
    assert engines["spec"]["replicas"] == 3
    assert engines["spec"]["template"]["metadata"]["annotations"] == {}
    assert "--kv-transfer-config" not in _container(engines)["args"]
    assert [port["name"] for port in made["Service", "aggregated"]["spec"]["ports"]] == ["http"]
    assert ("PodDisruptionBudget", "aggregated") in made
    assert ("Deployment", "prefill") not in made


@pytest.mark.parametrize(("seconds", "grace"), [(60, 75), (0, 15), (3600, 3615)])
def test_the_grace_period_covers_serving_on_and_open_requests(seconds: int, grace: int) -> None:
    made = _rendered(engine={"shutdownSeconds": seconds})
    engines, gateway = made["Deployment", "decode"], made["Deployment", "gateway"]
    assert {_pod(pods)["terminationGracePeriodSeconds"] for pods in (engines, gateway)} == {grace}
    assert _container(engines)["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    args = _container(engines)["args"]
    assert (args[args.index("--shutdown-timeout") + 1] if "--shutdown-timeout" in args else "0") == str(seconds)
    assert {"--drain-seconds=5", f"--shutdown-seconds={seconds}"} <= set(_container(gateway)["args"])


def test_an_engine_pod_may_do_little() -> None:
    engines = _rendered()["Deployment", "decode"]
    pod, container = _pod(engines), _container(engines)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_everything_an_engine_writes_lies_on_a_volume() -> None:
    engines = _rendered()["Deployment", "decode"]
    mounts = _mounts(engines)
    assert mounts["/dev/shm"] == {"emptyDir": {"medium": "Memory"}}
    assert mounts["/tmp"] == {"emptyDir": {}}
    env = _env(engines)
    for name in ("HOME", "HF_HOME", "VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert any(env[name].startswith(path) for path in mounts), name


def test_the_users_environment_wins_over_pdx_s_places() -> None:
    env = [{"name": "HF_HOME", "value": "/cache"}]
    assert _env(_rendered(engine={"env": env})["Deployment", "decode"])["HF_HOME"] == "/cache"


def test_rdma_brings_the_right_to_pin_memory() -> None:
    pool = {"resources": {"limits": {"rdma/hca_shared_devices_a": 1}}}
    made = _rendered(prefill=pool)
    assert _container(made["Deployment", "prefill"])["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert "add" not in _container(made["Deployment", "decode"])["securityContext"]["capabilities"]


def test_a_model_from_a_volume_is_mounted_read_only_and_named_by_its_path() -> None:
    source = {"persistentVolumeClaim": {"claimName": "weights", "path": "qwen/8b"}}
    engines = _rendered(model={"name": "qwen", "source": source})["Deployment", "decode"]
    assert _mounts(engines)["/models"] == {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}
    assert {"name": "model", "mountPath": "/models", "readOnly": True} in _container(engines)["volumeMounts"]
    assert _container(engines)["args"][:2] == ["serve", "/models/qwen/8b"]


def test_the_hubs_token_and_cache() -> None:
    model = {
        "name": "m",
        "tokenSecretRef": {"name": "hub"},
        "cache": {"persistentVolumeClaim": {"claimName": "downloads"}},
    }
    engines = _rendered(model=model)["Deployment", "prefill"]
    env = _env(engines)
    assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert _mounts(engines)[env["HF_HOME"]] == {"persistentVolumeClaim": {"claimName": "downloads"}}


def test_a_change_of_routing_touches_the_gateway_alone() -> None:
    before = _rendered()
    after = _rendered(routing={"onPrefillFailure": "Local", "deadlines": {"prefillSeconds": 60}})
    assert {key for key in before if before[key] != after[key]} == {("Deployment", "gateway")}
    args = _container(after["Deployment", "gateway"])["args"]
    assert [arg for arg in args if arg not in _container(before["Deployment", "gateway"])["args"]] == [
        *("--on-prefill-failure=Local", "--prefill-seconds=60"),
    ]


def test_clients_keys_are_a_file_of_the_gateway() -> None:
    made = _rendered(gateway={"auth": {"secretRef": {"name": "clients"}}})
    gateway = made["Deployment", "gateway"]
    items = [{"key": "keys", "path": "client-keys"}]
    secret = {"secretName": "clients", "items": items, "defaultMode": 0o440, "optional": False}
    assert _mounts(gateway)["/etc/pdx/client-keys"] == {"secret": secret}
    assert all(mount.get("readOnly") for mount in _container(gateway)["volumeMounts"] if "pdx" in mount["mountPath"])
    args = _container(gateway)["args"]
    assert "--client-keys=/etc/pdx/client-keys/client-keys" in args
    assert create_parser().parse_args(args).client_keys == "/etc/pdx/client-keys/client-keys"
    assert _rendered()["Deployment", "decode"] == made["Deployment", "decode"]


def test_the_engines_key_is_known_to_engines_and_gateway() -> None:
    made = _rendered(engine={"apiKeySecretRef": {"name": "key", "key": "k"}})
    for role in ("prefill", "decode"):
        assert _env(made["Deployment", role])["VLLM_API_KEY"] == {"secretKeyRef": {"name": "key", "key": "k"}}
    gateway = made["Deployment", "gateway"]
    assert _mounts(gateway)["/etc/pdx/engine-key"]["secret"]["items"] == [{"key": "k", "path": "engine-key"}]
    assert "--engine-key=/etc/pdx/engine-key/engine-key" in _container(gateway)["args"]


@pytest.mark.parametrize(
    ("rollout", "expected"),
    [
        ({}, {"maxSurge": "25%", "maxUnavailable": 0}),
        ({"maxSurge": 0}, {"maxSurge": 0, "maxUnavailable": 1}),
        ({"maxSurge": "0%", "maxUnavailable": "0%"}, {"maxSurge": "0%", "maxUnavailable": 1}),
        ({"maxSurge": 0, "maxUnavailable": "50%"}, {"maxSurge": 0, "maxUnavailable": "50%"}),
    ],
)
def test_pods_are_replaced_within_the_rollouts_bounds(rollout: dict[str, Any], expected: dict[str, Any]) -> None:
    strategy = _rendered(rollout=rollout)["Deployment", "decode"]["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": expected}


def test_the_longest_name_gives_names_that_kubernetes_takes() -> None:
    name = "a" * 41
    body = {"model": {"name": "m"}, "mode": "Aggregated", "aggregated": {}}
    deployment = parse(
        {"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": {"name": name}, "spec": body}
    )
    assert all(len(child["metadata"]["name"]) <= 63 for child in _children(deployment).values())
    services = [service.name for connector in CONNECTORS.values() for service in connector.services]
    assert all(len(service_name(name, service, pairing_revision(deployment.spec))) <= 63 for service in services)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_renders(example: Path, mode: Mode, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", str(example), "--set", f"spec.mode={mode}", "--namespace", "llm"]) == 0
    out = capsys.readouterr().out
    documents = list(yaml.safe_load_all(out))
    # Deployment, Service and NetworkPolicy of its side service.
    served = 3 * example.stem.startswith(("lmcache", "mooncake-store"))
    assert len(documents) == (14 + served if mode is Mode.DISAGGREGATED else 11)
    assert {document["metadata"]["namespace"] for document in documents} == {"llm"}
    assert "&id" not in out, "aliases are YAML, but nobody expects them in manifests"


GATEWAY = ("Deployment", "gateway")


def test_the_gateway_is_told_where_to_look_and_where_to_listen() -> None:
    gateway = _rendered(gateway={"replicas": 2, "workers": 3})[GATEWAY]
    assert gateway["spec"]["replicas"] == 2
    container = _container(gateway)
    args = create_parser().parse_args(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (args.deployment, args.namespace, args.workers) == ("qwen", "llm", 3)
    assert (args.listen.port, args.admin.port) == (ports["http"], ports["admin"])
    assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")} == {
        "/healthz",
        "/readyz",
    }
    assert all(container[f"{kind}Probe"]["httpGet"]["port"] == "admin" for kind in ("liveness", "readiness"))


def test_an_autoscaled_gateways_replicas_are_not_written() -> None:
    assert "replicas" not in _rendered(gateway={"autoscaled": True, "replicas": 2})[GATEWAY]["spec"]


def test_a_gateway_is_replaced_before_it_goes() -> None:
    strategy = _rendered()[GATEWAY]["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_the_gateways_image_is_the_operators_unless_the_spec_names_one() -> None:
    assert _container(_rendered()[GATEWAY])["image"] == "pdx-gateway:1"
    assert _container(_rendered(gateway={"image": "mine:2"})[GATEWAY])["image"] == "mine:2"


def test_a_gateway_pod_may_read_pods_and_write_nothing() -> None:
    made = _rendered()
    pod, container = _pod(made[GATEWAY]), _container(made[GATEWAY])
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsUser"] == 65532
    account = made["ServiceAccount", "gateway"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    binding = made["RoleBinding", "gateway"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "llm"}]
    assert binding["roleRef"]["name"] == made["Role", "gateway"]["metadata"]["name"]
    assert made["Role", "gateway"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]


def test_clients_reach_the_gateway_by_its_service() -> None:
    made = _rendered(gateway={"service": {"type": "NodePort", "annotations": {"a": "b"}}})
    service = made["Service", "gateway"]
    assert service["metadata"]["annotations"] == {"a": "b"}
    assert service["spec"] == {
        "type": "NodePort",
        "selector": {"pdx.dev/deployment": "qwen", "pdx.dev/role": "gateway"},
        "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
    }
    labels = made[GATEWAY]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize("name", ["prefill", "decode", "gateway"])
def test_a_disruption_budget_covers_all_revisions_and_never_holds_up_a_drain_for_ever(name: str) -> None:
    made = _rendered()
    budget = made["PodDisruptionBudget", name]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    labels = made["Deployment", name]["spec"]["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert "pdx.dev/revision" not in budget["selector"]["matchLabels"]


def test_only_gateway_and_engines_reach_an_engine() -> None:
    policy = _rendered()["NetworkPolicy", "engines"]["spec"]
    from_gateway, asks_identity, from_engines = policy["ingress"]
    gateway = {"podSelector": {"matchLabels": {"pdx.dev/deployment": "qwen", "pdx.dev/role": "gateway"}}}
    assert from_gateway == {"from": [gateway], "ports": [{"protocol": "TCP", "port": ENGINE_PORT}]}
    assert asks_identity == {"from": [gateway], "ports": [{"protocol": "TCP", "port": 8998}]}
    assert from_engines == {"from": [{"podSelector": policy["podSelector"]}]}
    (roles,) = policy["podSelector"]["matchExpressions"]
    assert set(roles["values"]) == {"prefill", "decode", "aggregated"}


def test_nobody_reaches_the_gateways_admin_port_unless_named() -> None:
    assert _rendered()["NetworkPolicy", "gateway"]["spec"]["ingress"] == [
        {"ports": [{"protocol": "TCP", "port": 8080}]}
    ]


def test_who_scrapes_reaches_both() -> None:
    sources = [
        {"podLabels": {"app": "vector"}},
        {"namespaceLabels": {"team": "sre"}},
        {"namespaceLabels": {"team": "sre"}, "podLabels": {"app": "prometheus"}},
    ]
    made = _rendered(observability={"scrapeFrom": sources})
    peers = [
        {"podSelector": {"matchLabels": {"app": "vector"}}},
        {"namespaceSelector": {"matchLabels": {"team": "sre"}}, "podSelector": {}},
        {
            "namespaceSelector": {"matchLabels": {"team": "sre"}},
            "podSelector": {"matchLabels": {"app": "prometheus"}},
        },
    ]
    assert made["NetworkPolicy", "engines"]["spec"]["ingress"][0]["from"][1:] == peers
    assert made["NetworkPolicy", "gateway"]["spec"]["ingress"][1] == {
        "from": peers,
        "ports": [{"protocol": "TCP", "port": 9090}],
    }


def test_the_operators_pods_reach_the_gateways_admin_port() -> None:
    made = children(_deployment(), uid="7", gateway_image="g", operator_namespace="pdx-system")
    (policy,) = (m for m in made if m["kind"] == "NetworkPolicy" and m["metadata"]["name"] == "qwen-gateway")
    (peer,) = policy["spec"]["ingress"][1]["from"]
    assert peer == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "pdx-system"}},
        "podSelector": {"matchLabels": dict(OPERATOR_LABELS)},
    }


def test_a_wrong_overlay_is_named_by_the_field_it_stands_in() -> None:
    overlay = {"podTemplate": {"spec": {"containers": [{"name": "engine", "env": [{"name": "POD_IP", "value": "x"}]}]}}}
    with pytest.raises(OverlayError, match=r"^spec\.decode\.podTemplate\.spec\.containers\[engine\]\.env may not"):
        _rendered(mode="Aggregated", decode=overlay)


def test_render_says_in_one_sentence_what_is_wrong_with_an_overlay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.yaml"
    overlay = "{spec: {containers: [{name: engine, env: [{name: POD_IP, value: x}]}]}}"
    file.write_text(next(path for path in EXAMPLES if path.name == "qwen.yaml").read_text())
    assert main(["render", str(file), "--set", f"spec.decode.podTemplate={overlay}"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "spec.decode.podTemplate.spec.containers[engine].env may not change POD_IP" in err
    assert err.count("\n") == 1
