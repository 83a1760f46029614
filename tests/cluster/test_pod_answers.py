"""Requests reach a pod through the API server's port-forward, or through its proxy without the right to the former."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdx_cli.main import main
from pdx_cli.sources.kube import Kube, PodAnswerError
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.node import pods
from tests.cluster.runtime.harness import Api, install, uninstall
from tests.cluster.test_node import pod

pytestmark = pytest.mark.timeout(150)
SERVE = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"x" * 300000 if self.path == "/big" else b"hello"
        self.send_response(404 if self.path == "/none" else 200)
        if self.path != "/big":
            self.send_header("Content-Length", str(len(body) + (self.path == "/cut")))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("", 8080), Handler).serve_forever()
"""
CANNED = """
import http.server, json, re
ANSWERS = json.loads({answers!r})
SENT = dict.fromkeys(ANSWERS, 0)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = ANSWERS.get(self.path)
        if body is not None:
            SENT[self.path] += 1
            body = re.sub("([0-9]+)@", lambda found: str(int(found[1]) * SENT[self.path]), body)
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(body or "")))
        self.end_headers()
        self.wfile.write((body or "").encode())
http.server.ThreadingHTTPServer(("", {port}), Handler).serve_forever()
"""
ENDPOINT = {"revision": "a", "connector": "NIXL", "order": "PrefillFirst", "reason": None, "inFlight": 1}
FORWARD = {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]}
PROXY = {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}


def kubeconfig(cluster: Cluster, namespace: str, name: str, rules: list[dict[str, list[str]]], folder: Path) -> str:
    """That of an account with these rights in the namespace."""
    cluster.kubectl("create", "serviceaccount", name, "-n", namespace)
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules}
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(role))
    account = f"--serviceaccount={namespace}:{name}"
    cluster.kubectl("create", "rolebinding", name, f"--role={name}", account, "-n", namespace)
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"][0]["user"] = {"token": cluster.kubectl("create", "token", name, "-n", namespace).strip()}
    path = folder / name
    path.write_text(json.dumps(config))
    return str(path)


@pytest.fixture
def web(node_cluster: Cluster, namespace: str) -> str:
    """A pod that serves on 8080."""
    assert node_cluster.node is not None
    node_cluster.node.import_image(pods.empty_image())
    body = pod("web", SERVE, readinessProbe={"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1})
    node_cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(body))
    node_cluster.kubectl("wait", "--for=condition=Ready", "pod/web", "-n", namespace, "--timeout=40s")
    return "web"


async def test_a_pod_answers(node_cluster: Cluster, namespace: str, web: str, tmp_path: Path) -> None:
    for name, rules in (("forwards", [FORWARD]), ("proxies", [PROXY]), ("both", [FORWARD, PROXY])):
        kube, _ = await Kube.of(kubeconfig(node_cluster, namespace, name, rules, tmp_path), None)
        try:
            assert await kube.query_pod(namespace, web, 8080, "/") == b"hello", name
            assert await kube.query_pod(namespace, web, 8080, "/big") == b"x" * 300000, name
            with pytest.raises(PodAnswerError, match="404"):
                await kube.query_pod(namespace, web, 8080, "/none")
            if FORWARD in rules:
                with pytest.raises(PodAnswerError, match="before the end of its answer"):
                    await kube.query_pod(namespace, web, 8080, "/cut")
            with pytest.raises(PodAnswerError) as unanswered:
                await kube.query_pod(namespace, web, 8081, "/")
            assert unanswered.value.reached == (FORWARD in rules), "the proxy cannot tell who has refused"
        finally:
            await kube.close()
    kube, _ = await Kube.of(kubeconfig(node_cluster, namespace, "neither", [], tmp_path), None)
    try:
        with pytest.raises(PodAnswerError, match="pods/portforward") as refused:
            await kube.query_pod(namespace, web, 8080, "/")
        assert not refused.value.reached
    finally:
        await kube.close()


def labelled(role: str, port: int, answers: dict[str, str]) -> dict[str, Any]:
    """A pod of the PDDeployment m that serves `answers`: the body for each path. `7@` becomes 7, then 14, and so on."""
    body = pod(f"m-{role}-a-1", CANNED.format(answers=json.dumps(answers), port=port))
    body["metadata"]["labels"] = {"pdx.dev/deployment": "m", "pdx.dev/role": role, "pdx.dev/revision": "a"}
    body["spec"]["containers"][0]["name"] = "gateway" if role == "gateway" else "engine"
    body["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": port}, "periodSeconds": 1}
    return body


def engine(model: str, external: int) -> dict[str, str]:
    """The answers of an engine: the body for each path. Each answer counts `external` more tokens, and 100 computed."""
    counter = "vllm:prompt_tokens_by_source_total"
    page = f'{counter}{{source="external_kv_transfer"}} {external}@\n{counter}{{source="local_compute"}} 100@\n'
    models = {"data": [{"id": "m", "root": model}]}
    return {"/health": "", "/version": '{"version": "0.32.0"}', "/v1/models": json.dumps(models), "/metrics": page}


@pytest.fixture
def installed(node_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the CRD."""
    install(node_cluster)
    yield node_cluster
    uninstall(node_cluster)


def test_gateways_and_engines_in_pods_are_queried(
    installed: Cluster, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node_cluster = installed
    assert node_cluster.node is not None
    node_cluster.node.import_image(pods.empty_image())
    Api(installed).deploy(namespace)
    ends = [
        {
            **ENDPOINT,
            "name": f"m-{role}-a-1",
            "pod": f"m-{role}-a-1",
            "role": role,
            "state": "Warm",
            "url": "http://x:8000",
        }
        for role in ("prefill", "decode")
    ]
    state = {
        "ready": True,
        "mode": "Disaggregated",
        "endpoints": ends,
        "inFlight": {"requests": 2},
        "outcomes": {"split": 7},
    }
    page = 'pdx_phase_seconds_bucket{le="+Inf",phase="total"} 7\n'
    bodies = (
        labelled("gateway", 9090, {"/pdx/state": json.dumps(state), "/metrics": page}),
        labelled("prefill", 8000, engine("m", 0)),
        labelled("decode", 8000, engine("/models/m", 300)),
    )
    for body in bodies:
        node_cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(body))
    names = [f"pod/{body['metadata']['name']}" for body in bodies]
    node_cluster.kubectl("wait", "--for=condition=Ready", *names, "-n", namespace, "--timeout=40s")
    where = ["m", "-n", namespace, "--kubeconfig", str(node_cluster.kubeconfig)]
    assert main(["doctor", *where]) == 1
    out = capsys.readouterr().out
    assert "ModelsDiffer: The prefill engine m-prefill-a-1 serves the model 'm'" in out
    assert "3 pods" in out
    assert "Could not read" not in out
    assert main(["top", *where, "--once", "--interval", "0.1"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["split"] == ["split", "0.0", "7"]
    assert lines["decode-a-1"][:3] == ["decode-a-1", "decode", "Warm"]
    assert lines["decode-a-1"][-1] == "75%"
