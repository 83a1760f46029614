"""The control plane that the other tests rely on."""

import pytest

from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import ClusterError


def test_a_config_map_that_is_created_is_read_back(control_plane: Cluster, namespace: str) -> None:
    control_plane.kubectl("create", "configmap", "greeting", "--from-literal=word=hello", "-n", namespace)
    word = control_plane.kubectl("get", "configmap", "greeting", "-n", namespace, "-o", "jsonpath={.data.word}")
    assert word == "hello"


def test_controllers_run(control_plane: Cluster, namespace: str) -> None:
    control_plane.kubectl("create", "deployment", "web", "--image=none.invalid/none", "-n", namespace)
    control_plane.kubectl("wait", "--for=create", "pod", "-l", "app=web", "-n", namespace, "--timeout=30s")


def test_a_refusal_is_an_error_with_the_servers_message(control_plane: Cluster, namespace: str) -> None:
    with pytest.raises(ClusterError, match=r'namespaces "default" is forbidden'):
        control_plane.kubectl("delete", "namespace", "default")


def test_the_api_server_comes_back_at_its_address_with_its_objects(control_plane: Cluster, namespace: str) -> None:
    address = control_plane.url
    control_plane.restart_apiserver()
    assert control_plane.url == address
    assert control_plane.kubectl("get", "namespace", namespace, "-o", "name").strip() == f"namespace/{namespace}"


def test_writes_are_counted_by_the_api_server(control_plane: Cluster, namespace: str) -> None:
    """Of a kind that no controller creates meanwhile, as they do ConfigMaps in new namespaces."""
    before = control_plane.metric("apiserver_request_total", verb="POST", resource="resourcequotas")
    control_plane.kubectl("create", "quota", "counted", "-n", namespace)
    assert control_plane.metric("apiserver_request_total", verb="POST", resource="resourcequotas") == before + 1
