"""`pdx doctor` names what keeps pods from starting, from what a real scheduler and a real kubelet report."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import Finding, Severity, examine
from pdx_cli.commands.doctor import inspect
from pdx_cli.inputs.target import InCluster
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.node import pods
from tests.cluster.runtime.harness import Api, Body, Operator, eventually, grant, install, revoke, uninstall

pytestmark = pytest.mark.timeout(240)
SECONDS = 120.0
"""Until it is named; vLLM itself takes its time to be imported on a busy machine."""


@pytest.fixture(scope="module")
def installed(node_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster with the CRD, an operator and the empty image; as it was, afterwards."""
    assert node_cluster.node is not None
    node_cluster.node.import_image(pods.empty_image())
    folder = tmp_path_factory.mktemp("operator")
    with contextlib.ExitStack() as stack:
        stack.callback(uninstall, node_cluster)
        install(node_cluster)
        stack.callback(revoke, node_cluster)
        operator = Operator.start(grant(node_cluster, folder), folder)
        stack.callback(operator.end)
        operator.wait_until_working()
        yield node_cluster


def spec(engine: Body | None = None, model: Body | None = None, **pool: Any) -> Body:
    """One prefill engine in the empty image, unless `engine` sets another."""
    image = {"image": pods.empty_image().reference, "imagePullPolicy": "Never"}
    return {
        "model": {"name": "m", **(model or {})},
        "engine": {**image, **(engine or {})},
        "prefill": pool,
        "decode": {"replicas": 0},
        "gateway": {"replicas": 0},
    }


def vllm(path: Path) -> Body:
    """The machine's vLLM, for a model at a path where there is none."""
    mounted = pods.host_folders(dict.fromkeys([*pods.SYSTEM, Path(sys.base_prefix), Path(sys.prefix)]))
    container = {"name": "engine", "volumeMounts": mounted.mounts}
    template = {"spec": {"containers": [container], "volumes": mounted.volumes}}
    programs = {"name": "PATH", "value": f"{Path(sys.prefix) / 'bin'}:/usr/bin:/bin"}
    model = {"source": {"path": str(path)}}
    return spec({"env": [programs]}, model, podTemplate=template)


@pytest.mark.parametrize(
    ("given", "cause", "text"),
    [
        pytest.param(
            spec({"image": "none.invalid/vllm:1", "imagePullPolicy": "Always"}),
            "ImagePullFailed",
            "the image none.invalid/vllm:1 cannot be pulled",
            id="image",
        ),
        pytest.param(
            spec(resources={"limits": {"nvidia.com/gpu": 1}}),
            "Unschedulable",
            "no node has a free nvidia.com/gpu",
            id="gpu",
        ),
        pytest.param(
            spec(model={"source": {"persistentVolumeClaim": {"claimName": "models"}}}),
            "VolumeNotFound",
            'persistentvolumeclaim "models" not found',
            id="claim",
        ),
        pytest.param(
            spec(model={"tokenSecretRef": {"name": "hub"}}),
            "SecretNotFound",
            "Secret hub",
            id="secret",
        ),
        pytest.param(spec(), "ContainerCannotStart", "executable file", id="program"),
        pytest.param(vllm(Path("/models/none")), "ModelNotFound", "correct spec.model.source", id="model"),
    ],
)
def test_what_keeps_engines_from_starting(
    given: Body, cause: str, text: str, installed: Cluster, namespace: str
) -> None:
    if cause == "ModelNotFound":
        pytest.importorskip("vllm", reason="vLLM is not installed")
    Api(installed).deploy(namespace, spec=given)
    place = InCluster("m", namespace, str(installed.kubeconfig), None)

    def named() -> Finding | None:
        found = examine(asyncio.run(inspect(place)), CHECKS)
        return next((each for each in found if each.cause == cause), None)

    finding: Finding = eventually(named, SECONDS, cause)
    assert finding.severity is Severity.WRONG
    assert text in finding.sentence
