"""Objects of PDX 0.1.0 on a real API server: the CRD is replaced, then `pdx convert` renames their fields."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml

from pdx_api.names import GROUP, PLURAL
from pdx_api.render.engines import engine_inputs, pairing_revision
from pdx_api.spec.deprecated import converted, steps
from pdx_api.spec.parse import parse
from pdx_cli.main import main
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import ClusterError
from pdx_operator.kube.resources import PDDEPLOYMENT
from tests.cluster.runtime.harness import Api, eventually
from tests.cluster.test_crd import CRD
from tests.component.skew.record import CRD as FORMER_CRD
from tests.component.skew.record import EXAMPLES
from tests.former_objects import FORMER

Body = dict[str, Any]

OBJECTS: list[Body] = [FORMER, *yaml.safe_load_all(EXAMPLES.read_text())]


def _install(cluster: Cluster, api: Api, namespace: str) -> None:
    """Replace the CRD of 0.1.0, and await that the API server serves its schema and its objects."""
    cluster.kubectl("apply", "-f", str(CRD))
    path = f"/openapi/v3/apis/{PDDEPLOYMENT.api_version}"
    eventually(lambda: "drainSeconds" in str(cluster.get(path)), what="the schema")
    eventually(lambda: _is_served(api, namespace), what="the objects")


def _is_served(api: Api, namespace: str) -> bool:
    try:
        return bool(api.items(PDDEPLOYMENT, namespace))
    except HTTPError as error:
        if error.code == 429:  # it opens the store anew
            return False
        raise


@pytest.fixture
def stored(control_plane: Cluster, namespace: str) -> Iterator[Api]:
    """Every former object, as the CRD of 0.1.0 stored it; then this version's CRD is in force."""
    api = Api(control_plane)
    control_plane.kubectl("delete", "crd", f"{PLURAL}.{GROUP}", "--ignore-not-found")
    control_plane.kubectl("apply", "-f", str(FORMER_CRD))
    for body in OBJECTS:
        eventually(partial(_created, api, namespace, body), what=body["metadata"]["name"])
    try:
        yield api
    finally:
        control_plane.kubectl("apply", "-f", str(CRD))


def _created(api: Api, namespace: str, body: Body) -> bool:
    try:
        api.create(PDDEPLOYMENT, namespace, body)
    except HTTPError as error:
        if error.code in (404, 429):  # the CRD has just been made
            return False
        raise
    return True


def _objects(api: Api, namespace: str) -> dict[str, Body]:
    return {body["metadata"]["name"]: body for body in api.items(PDDEPLOYMENT, namespace)}


def _engines(body: Body) -> object:
    """What the engines of an object follow from."""
    spec = parse(body, tolerant=True).spec
    return pairing_revision(spec), {role: engine_inputs(spec, role) for role in spec.pools()}


def _refusal(api: Api, namespace: str, spec: Body) -> str:
    with pytest.raises(HTTPError) as raised:
        api.change(namespace, spec, "former")
    return str(json.loads(raised.value.read())["message"])


def test_former_objects_stay_writable_and_are_converted(
    stored: Api, control_plane: Cluster, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _objects(stored, namespace)
    assert before.keys() == {body["metadata"]["name"] for body in OBJECTS}
    assert all(any(steps(body)) for body in before.values()), "0.1.0 has written its defaults into each"
    flags = ["--cluster", "-n", namespace, "--kubeconfig", str(control_plane.kubeconfig)]
    assert main(["convert", *flags, "--write"]) == 2
    assert "The cluster's CRD lacks spec." in capsys.readouterr().err
    assert _objects(stored, namespace) == before

    _install(control_plane, stored, namespace)
    assert {name: body["spec"] for name, body in _objects(stored, namespace).items()} == {
        name: body["spec"] for name, body in before.items()
    }, "the CRD drops nothing"
    stored.change(namespace, {"decode": {"replicas": 3}, "routing": {"retries": {"attempts": 3}}}, "former")
    refused = _refusal(stored, namespace, {"routing": {"canarySeconds": 21}})
    assert "write kvTransfer.verification.periodSeconds (pdx convert does it)" in refused

    assert main(["convert", *flags]) == 0
    shown = capsys.readouterr().out
    assert f"+++ {namespace}/former (converted)" in shown
    assert "-    shutdownSeconds: 90\n+    drainSeconds: 90\n" in shown
    assert main(["convert", *flags, "--write"]) == 0
    after = _objects(stored, namespace)
    assert not any(any(steps(body)) for body in after.values())
    assert after["former"]["spec"]["decode"]["replicas"] == 3
    assert {name: _engines(body) for name, body in after.items()} == {n: _engines(b) for n, b in before.items()}
    capsys.readouterr()
    assert main(["convert", *flags, "--check"]) == 0
    assert capsys.readouterr().out == ""


def test_a_saved_conversion_is_applied_after_the_crd(
    stored: Api, control_plane: Cluster, namespace: str, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    before = _objects(stored, namespace)
    flags = ["--cluster", "-n", namespace, "--kubeconfig", str(control_plane.kubeconfig)]
    assert main(["convert", *flags, "-o", "yaml"]) == 0
    saved = tmp_path / "saved.yaml"
    saved.write_text(capsys.readouterr().out)
    _install(control_plane, stored, namespace)
    control_plane.kubectl("replace", "-f", str(saved))
    after = _objects(stored, namespace)
    assert not any(any(steps(body)) for body in after.values())
    assert {name: _engines(body) for name, body in after.items()} == {n: _engines(b) for n, b in before.items()}


def test_files_are_applied_as_before_and_after_their_conversion(
    stored: Api, control_plane: Cluster, namespace: str
) -> None:
    """Users apply the same files again after the upgrade, and the converted ones later."""
    plain: Body = {
        **FORMER,
        "metadata": {"name": "plain"},
        "spec": {"model": {"name": "m"}, "prefill": {}, "decode": {}},
    }
    files = [{**FORMER, "metadata": {"name": "applied"}}, plain]

    def apply(bodies: list[Body], *how: str) -> None:
        text = yaml.safe_dump_all(json.loads(json.dumps(bodies)))
        control_plane.kubectl("apply", "-n", namespace, *how, "-f", "-", stdin=text)

    apply(files)
    before = {name: _engines(body) for name, body in _objects(stored, namespace).items()}
    _install(control_plane, stored, namespace)
    apply(files)
    apply([converted(body) for body in files])
    after = _objects(stored, namespace)
    assert {name: _engines(body) for name, body in after.items()} == before
    assert "shutdownSeconds" not in after["applied"]["spec"]["engine"], "kubectl has removed what the file named"
    assert after["plain"]["spec"]["engine"]["shutdownSeconds"] == 60, "the default of 0.1.0 stays until it is converted"
    with pytest.raises(ClusterError, match=r"write engine\.drainSeconds \(pdx convert does it\)"):
        apply([{**FORMER, "metadata": {"name": "new"}}])
