"""A pod is asked through the API server's port-forward, and through its proxy where the right to that is lacking."""

import json
from pathlib import Path

import pytest

from pdx_cli.kube import Kube, PodAnswerError
from pdx_cluster import pods
from pdx_cluster.cluster import Cluster
from tests.cluster.test_node import pod

SERVE = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"x" * 300000 if self.path == "/big" else b"hello"
        self.send_response(404 if self.path == "/none" else 200)
        if self.path != "/big":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("", 8080), Handler).serve_forever()
"""
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
            assert await kube.ask_pod(namespace, web, 8080, "/") == b"hello", name
            assert await kube.ask_pod(namespace, web, 8080, "/big") == b"x" * 300000, name
            with pytest.raises(PodAnswerError, match="404"):
                await kube.ask_pod(namespace, web, 8080, "/none")
            with pytest.raises(PodAnswerError):
                await kube.ask_pod(namespace, web, 8081, "/")
        finally:
            await kube.close()
    kube, _ = await Kube.of(kubeconfig(node_cluster, namespace, "neither", [], tmp_path), None)
    try:
        with pytest.raises(PodAnswerError, match="pods/portforward"):
            await kube.ask_pod(namespace, web, 8080, "/")
    finally:
        await kube.close()
