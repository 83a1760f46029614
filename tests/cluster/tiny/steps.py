"""The steps of a user with the example on a cluster, each with its check."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from images import build
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import ClusterError
from tests.cluster.tiny import objects
from tests.cluster.tiny.scene import Scene, Transfer

SYSTEM: Final = "pdx-system"
RELEASE: Final = "pdx"
FIRST: Final = "first"
SECOND: Final = "second"
CHART: Final = objects.CHECKOUT / "charts" / "pdx"


def prepare(folder: Path) -> None:
    """Make the tiny model, and the images from their Dockerfiles."""
    if not (objects.MODEL / "config.json").exists():
        _run(objects.PYTHON, "-m", "pdx_cli", "tiny-model", str(objects.MODEL))
    _run(objects.PYTHON, str(Path(build.__file__)), "--out", str(folder), "--stand-in", "auto", "--tag", FIRST)


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=objects.CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode:
        text = done.stderr.strip() or done.stdout.strip()
        raise ClusterError(f"{text.splitlines()[-1]}\n{' '.join(command)}:\n{text}")


def load_images(cluster: Cluster, folder: Path) -> None:
    """Give the images to the node, under two tags: the second is an upgrade."""
    assert cluster.node is not None
    cluster.node.import_image(objects.ENGINE_IMAGE)
    for image in build.PACKAGES:
        for reference in cluster.node.import_image(folder / f"{image}.tar"):
            name = reference.rpartition(":")[0]
            cluster.node.ctr("images", "tag", "--force", reference, f"{name}:{SECOND}")


def install(cluster: Cluster, tag: str) -> None:
    """`helm install`, or `helm upgrade` to another tag."""
    settings = {"operator.image.tag": tag, "gateway.image.tag": tag}
    values = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    cluster.helm(
        *("upgrade", "--install", RELEASE, str(CHART), "--namespace", SYSTEM, "--create-namespace"),
        *(*values, "--wait", "--timeout", "120s"),
        timeout_seconds=150,
    )


def serve(scene: Scene) -> Transfer:
    """Apply the example, wait as a user does, and send a request to the gateway's Service from another pod."""
    bring_up(scene, objects.tiny())
    return check_transfer(scene, seed=1)


def bring_up(scene: Scene, example: objects.Manifest) -> None:
    """Apply an example, and wait as a user does."""
    scene.apply(objects.client())
    scene.apply(example)
    scene.wait_until_settled(500)
    scene.kubectl("wait", "--for=condition=Ready", f"pdd/{scene.name}", "--timeout=10s")
    scene.kubectl("wait", "--for=condition=Ready", f"pod/{objects.CLIENT}", "--timeout=60s")


def check_transfer(scene: Scene, seed: int) -> Transfer:
    """Text equal to a single engine's, and the whole prompt through the connector."""
    return checked(scene.transfer(seed))


def checked(found: Transfer, computed: int = 0) -> Transfer:
    """The same, except for `computed` tokens that D always computes."""
    if found.text != found.alone:
        raise ClusterError(f"texts differ: {found.text!r} through both, {found.alone!r} from one engine")
    if not found.external_tokens or found.external_tokens + computed != found.prompt_tokens:
        raise ClusterError(f"{found.external_tokens} of {found.prompt_tokens} prompt tokens came through the connector")
    return found


def switch_order(scene: Scene, order: str) -> int:
    """Change the order under steady requests, of which none may fail; return their number."""
    with scene.steady_requests() as answers:
        time.sleep(2)
        scene.patch({"kvTransfer": {"order": order}})
        scene.wait_until_settled(900)
        time.sleep(2)
    check_all_answered(answers)
    check_transfer(scene, seed=2)
    return len(answers)


def check_all_answered(answers: list[dict[str, Any]]) -> None:
    """None of the steady requests failed."""
    failed = [answer for answer in answers if answer["status"] != 200]
    if failed or len(answers) < 10:
        raise ClusterError(f"{len(failed)} of {len(answers)} requests failed: {json.dumps(failed[:5])}")


def scale(scene: Scene) -> None:
    """Two prefill engines, then one again with two decode engines, then one of each."""
    for prefill, decode in ((2, 1), (1, 2), (1, 1)):
        scene.patch({"prefill": {"replicas": prefill}, "decode": {"replicas": decode}})
        scene.wait_until_settled(600)
        _wait_for_pods(scene, prefill + decode)
    check_transfer(scene, seed=3)


def _wait_for_pods(scene: Scene, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(scene.pods()) != count:
        if time.monotonic() > deadline:
            raise ClusterError(f"there are {len(scene.pods())} engine pods, not {count}")
        time.sleep(0.5)


def upgrade(scene: Scene) -> int:
    """Another tag of operator and gateway under steady requests: no engine restarts, no request fails."""
    before = scene.engine_starts()
    with scene.steady_requests() as answers:
        install(scene.cluster, SECOND)
        _wait_for_image(scene, SECOND)
        scene.wait_until_settled(120)
    check_all_answered(answers)
    if scene.engine_starts() != before:
        raise ClusterError(f"engines were touched: {before} before, {scene.engine_starts()} after")
    check_transfer(scene, seed=4)
    return len(answers)


def _wait_for_image(scene: Scene, tag: str) -> None:
    """Until every gateway pod runs that tag."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        pods = scene.pods("pdx.dev/role=gateway")
        if pods and all(pod["spec"]["containers"][0]["image"].endswith(f":{tag}") for pod in pods):
            return
        time.sleep(0.5)
    raise ClusterError(f"the gateway was not brought to {tag}")


def remove(scene: Scene) -> None:
    """`kubectl delete`: nothing is left but the client's pod."""
    scene.kubectl("delete", "pdd", scene.name, seconds=60)
    kinds = "pods,deployments,replicasets,services,endpointslices,serviceaccounts,roles,rolebindings"
    all_kinds = f"{kinds},poddisruptionbudgets,networkpolicies"
    deadline = time.monotonic() + 150
    while left := scene.kubectl("get", all_kinds, "-l", f"pdx.dev/deployment={scene.name}", "-o", "name").split():
        if time.monotonic() > deadline:
            raise ClusterError(f"left after deletion: {', '.join(left)}")
        time.sleep(0.5)
    others = set(scene.kubectl("get", all_kinds, "-o", "name").split())
    expected = {f"pod/{objects.CLIENT}", "serviceaccount/default"}
    if others - expected:
        raise ClusterError(f"left after deletion: {', '.join(sorted(others - expected))}")
