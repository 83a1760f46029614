"""From nothing to a proof, with real vLLM engines as pods: what `make cluster-e2e` runs."""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from images.build import BuildError
from pdx_cluster.app import cluster
from pdx_cluster.errors import ClusterError
from tests.cluster import connectors
from tests.cluster.tiny import steps, verified
from tests.cluster.tiny.scene import Scene

NAMESPACE = "tiny"


def main() -> int:
    """Return 0 after a last line with the proof, or 1 after a sentence with the failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.tiny", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    keep = parser.parse_args().keep
    folder = Path(tempfile.mkdtemp(prefix="pdx-e2e-"))
    began = time.monotonic()

    def report(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:6.1f} s  {line}\n")
        sys.stdout.flush()

    try:
        proved = _prove(folder, report)
    except (ClusterError, BuildError) as error:
        sys.stderr.write(f"Not proved: {error}\n")
        return 1
    finally:
        if keep:
            sys.stdout.write(f"The cluster keeps running; its files are in {folder / 'cluster'}.\n")
        else:
            cluster.down(folder / "cluster")
            shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(f"Proved in {time.monotonic() - began:.0f} s: {proved}\n")
    return 0


def _prove(folder: Path, report: Callable[[str], None]) -> str:
    report("images of operator and gateway, from their Dockerfiles")
    steps.prepare(folder)
    report("one-node cluster")
    running = cluster.up(folder / "cluster", report, with_node=True)
    steps.load_images(running, folder)
    report("helm install")
    steps.install(running, steps.FIRST)
    running.kubectl("create", "namespace", NAMESPACE)
    scene = Scene(running, NAMESPACE, report)
    report("kubectl apply of the example, with real vLLM engines")
    served = steps.serve(scene)
    report(f"text equal to a single engine's; {served.external_tokens} of {served.prompt_tokens} tokens came as KV")
    report(f"KVTransferVerified is True after {verified.wait_until_verified(scene):.0f} s more")
    for way in verified.BREAKS:
        report(verified.break_and_repair(scene, way))
    report("another order, a request every 100 ms meanwhile")
    switched = steps.switch_order(scene, "DecodeFirst")
    report(f"{switched} requests, none failed; other numbers of engines")
    steps.scale(scene)
    report("operator and gateway upgraded")
    upgraded = steps.upgrade(scene)
    report(f"{upgraded} requests, none failed, no engine restarted; kubectl delete")
    steps.remove(scene)
    moved = []
    for name in connectors.EXAMPLES:
        report(f"kubectl apply of examples/connectors/{name}.yaml")
        found = connectors.prove(Scene(running, NAMESPACE, report, name))
        moved.append(f"{name} {found.external_tokens} of {found.prompt_tokens}")
    return (
        "helm install and kubectl apply served real vLLM prefill and decode pods through the gateway's Service, "
        f"{served.external_tokens} of {served.prompt_tokens} prompt tokens came as KV, the text was a single engine's; "
        f"KVTransferVerified and `pdx doctor` named each of {len(verified.BREAKS)} breaks and its repair; "
        f"no request of {switched + upgraded} failed during a change of order and an upgrade, and nothing was left. "
        f"Other connectors' examples moved tokens too: {', '.join(moved)}."
    )


if __name__ == "__main__":
    sys.exit(main())
