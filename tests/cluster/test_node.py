"""The node that runs containers, tested with a pod of an empty image and the machine's own Python."""

import json
import os
import urllib.request
from typing import Any

import pytest

from pdx_api.spec.model import Model
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.node import cgroups, pods
from pdx_cluster.node.network import Addresses
from pdx_operator.render.storage import HUB_CACHE, engine_env, engine_mounts, engine_volumes
from tests.cluster.runtime.harness import eventually

SERVE = """
import http.server, pathlib, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from a pod")
http.server.HTTPServer(("", 8080), Handler).serve_forever()
"""
CLIENT = """
import socket, time, urllib.request
for attempt in range(20):  # a Service answers a moment after its pod is Ready
    try:
        print(urllib.request.urlopen("http://web/", timeout=5).read().decode())
        break
    except OSError as error:
        print(error)
        time.sleep(0.5)
print(socket.gethostbyname("kubernetes.default.svc.cluster.local"))
"""


def pod(name: str, script: str, **fields: Any) -> dict[str, Any]:
    """A pod that runs a script with the machine's Python."""
    mounted = pods.host_folders()
    container = {
        "name": "main",
        "image": pods.empty_image().reference,
        "imagePullPolicy": "Never",
        "command": ["/usr/bin/python3", "-c", script],
        "volumeMounts": mounted.mounts,
        **fields,
    }
    spec = {"containers": [container], "volumes": mounted.volumes, "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


@pytest.fixture
def web(node_cluster: Cluster, namespace: str) -> str:
    """The address of a Service in front of one Ready pod."""
    assert node_cluster.node is not None
    node_cluster.node.import_image(pods.empty_image())
    probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    hook = {"preStop": {"exec": {"command": ["/bin/sleep", "2"]}}}
    server = pod("web", SERVE, readinessProbe=probe, lifecycle=hook)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    for document in (server, service):
        node_cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(document))
    node_cluster.kubectl("wait", "--for=condition=Ready", "pod/web", "-n", namespace, "--timeout=40s")
    return node_cluster.kubectl("get", "service", "web", "-n", namespace, "-o", "jsonpath={.spec.clusterIP}")


def test_import_returns_the_reference_for_pods(node_cluster: Cluster) -> None:
    assert node_cluster.node is not None
    assert node_cluster.node.import_image(pods.empty_image("pdx.local/other:1")) == ["pdx.local/other:1"]


def test_a_pod_answers_through_its_service_from_the_machine(web: str) -> None:
    def read() -> bytes:
        """Empty until kube-proxy has the Service's endpoint, some time after the pod is Ready: packets are lost."""
        try:
            with urllib.request.urlopen(f"http://{web}/", timeout=2) as answer:
                return bytes(answer.read())
        except OSError:
            return b""

    assert eventually(read, within=40) == b"hello from a pod"


def test_pods_weigh_more_than_one_process(node_cluster: Cluster, web: str) -> None:
    """Otherwise a few busy processes of the machine would leave engines too little CPU time to start."""
    assert web
    assert node_cluster.node is not None
    device = node_cluster.node.namespaces.addresses.device
    files = [path for name in cgroups.WEIGHTS for path in cgroups.ROOT.glob(f"**/{device}/{name}")]
    cores = os.cpu_count() or 1
    expected = {path.name: str(cgroups.WEIGHTS[path.name] * cgroups.PROCESSES_PER_CORE * cores) for path in files}
    assert {path.name: path.read_text().strip() for path in files} == expected != {}


def test_a_pod_reaches_a_service_by_name(node_cluster: Cluster, namespace: str, web: str) -> None:
    node_cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(pod("client", CLIENT)))
    done = "--for=jsonpath={.status.phase}=Succeeded"
    node_cluster.kubectl("wait", done, "pod/client", "-n", namespace, "--timeout=30s")
    first_service = str(Addresses(int(node_cluster.url.split(".")[2]) // 16).services[1])
    assert node_cluster.kubectl("logs", "client", "-n", namespace).split("\n")[-3:-1] == [
        "hello from a pod",
        first_service,
    ]


def test_a_pod_serves_during_its_pre_stop_hook(node_cluster: Cluster, namespace: str, web: str) -> None:
    node_cluster.kubectl("delete", "pod", "web", "-n", namespace, "--wait=false")
    address = node_cluster.kubectl("get", "pod", "web", "-n", namespace, "-o", "jsonpath={.status.podIP}")
    with urllib.request.urlopen(f"http://{address}:8080/", timeout=5) as answer:
        assert answer.read() == b"hello from a pod"


def test_exec_reaches_a_container(node_cluster: Cluster, namespace: str, web: str) -> None:
    assert node_cluster.kubectl("exec", "web", "-n", namespace, "--", "/bin/echo", "inside").strip() == "inside"


CONFINED = """
import json, os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
request = urllib.request.Request(
    f"https://{host}:{port}/api", headers={"Authorization": "Bearer " + open(folder + "token").read()}
)
context = ssl.create_default_context(cafile=folder + "ca.crt")
kind = json.load(urllib.request.urlopen(request, context=context))["kind"]
open("/dev/shm/mine", "w").write("x")
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps([kind, os.getuid(), status["Seccomp"].strip(), status["CapEff"].strip(), os.access("/tmp", os.W_OK)]))
"""


def test_a_confined_pod_reaches_the_api_server_with_its_token(node_cluster: Cluster, namespace: str) -> None:
    assert node_cluster.node is not None
    node_cluster.node.import_image(pods.empty_image())
    body = pod(
        "confined",
        CONFINED,
        resources={"limits": {"cpu": "500m", "memory": "128Mi"}},
        securityContext={
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    )
    body["spec"]["volumes"].append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}})
    body["spec"]["containers"][0]["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
    node_cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(body))
    done = "--for=jsonpath={.status.phase}=Succeeded"
    node_cluster.kubectl("wait", done, "pod/confined", "-n", namespace, "--timeout=30s")
    filtered, none = "2", "0" * 16
    output = json.loads(node_cluster.kubectl("logs", "confined", "-n", namespace))
    assert output == ["APIVersions", 65532, filtered, none, False]


CACHES = """
import os
os.makedirs(os.environ["VLLM_CACHE_ROOT"] + "/modelinfos")
os.makedirs(os.environ["XDG_CONFIG_HOME"])
os.mkdir("/home/vllm/.cache/huggingface/hub")
"""


def test_an_engine_writes_next_to_a_mounted_cache(node_cluster: Cluster, namespace: str) -> None:
    """Where no volume is mounted, the runtime creates the parents of a mount for root alone."""
    assert node_cluster.node is not None
    node_cluster.node.import_image(pods.empty_image())
    model = Model(name="tiny")
    body = pod("caches", CACHES, env=engine_env(model), securityContext={"runAsUser": 2000, "runAsNonRoot": True})
    spec, container = body["spec"], body["spec"]["containers"][0]
    spec["volumes"] += [*engine_volumes(model), {"name": "hub", "emptyDir": {}}]
    container["volumeMounts"] += [*engine_mounts(model), {"name": "hub", "mountPath": HUB_CACHE}]
    node_cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(body))
    done = "--for=jsonpath={.status.phase}=Succeeded"
    node_cluster.kubectl("wait", done, "pod/caches", "-n", namespace, "--timeout=30s")
