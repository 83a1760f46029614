"""From nothing to a proof, with real vLLM engines as pods: what `make cluster-e2e` runs."""

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import campaigns
from pdx_cluster.app import cluster
from pdx_cluster.errors import ClusterError
from tests.cluster import connectors
from tests.cluster.tiny import blocked, logs, steps, verified
from tests.cluster.tiny.scene import Scene

NAMESPACE = "tiny"
CAMPAIGN = "make cluster-e2e"


@dataclass(slots=True)
class Progress:
    """Prints what happens, with the seconds since the beginning."""

    step: str = "start"
    """What a failure is a failure of."""
    began: float = field(default_factory=time.monotonic)

    def begin(self, step: str) -> None:
        """Begin a step."""
        self.step = step
        self.report(step)

    def report(self, line: str) -> None:
        """Print a line."""
        sys.stdout.write(f"{time.monotonic() - self.began:6.1f} s  {line}\n")
        sys.stdout.flush()


def main() -> int:
    """Return 0 after a last line with the proof, or 1 after a last line with the step that failed and why."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.tiny", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    keep = parser.parse_args().keep
    folder = Path(tempfile.mkdtemp(prefix="pdx-e2e-"))
    progress, run, failure = Progress(), campaigns.begin(CAMPAIGN), ""
    try:
        proved = _prove(folder, progress)
    except Exception as error:  # the last line names the step, whatever has failed
        failure = f"{progress.step}: {_reason(error)}"
        progress.report(f"failed; the logs are in {logs.keep(folder / 'cluster', traceback.format_exc())}")
    finally:
        left = _end(folder, keep=keep)
    failure = failure or left
    run.end(f"failed: {failure}" if failure else campaigns.PASSED)
    if failure:
        sys.stderr.write(f"Not proved: {failure}\n")
        return 1
    sys.stdout.write(f"Proved in {time.monotonic() - progress.began:.0f} s: {proved}\n")
    return 0


def _reason(error: Exception) -> str:
    """The error in one line; the whole is in the logs."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _end(folder: Path, *, keep: bool) -> str:
    """Remove the cluster and its files; return why that failed, or nothing."""
    if keep:
        sys.stdout.write(f"The cluster keeps running; its files are in {folder / 'cluster'}.\n")
        return ""
    try:
        cluster.down(folder / "cluster")
    except ClusterError as error:
        return f"removal of the cluster: {_reason(error)}"
    shutil.rmtree(folder, ignore_errors=True)
    return ""


def _prove(folder: Path, progress: Progress) -> str:
    progress.begin("images of operator and gateway, from their Dockerfiles")
    steps.prepare(folder)
    progress.begin("one-node cluster")
    running = cluster.up(folder / "cluster", progress.report, with_node=True)
    steps.load_images(running, folder)
    progress.begin("helm install")
    steps.install(running, steps.FIRST)
    running.kubectl("create", "namespace", NAMESPACE)
    scene = Scene(running, NAMESPACE, progress.report)
    progress.begin("kubectl apply of the example, with real vLLM engines")
    served = steps.serve(scene)
    tokens = f"{served.external_tokens} of {served.prompt_tokens}"
    progress.report(f"text equal to a single engine's; {tokens} tokens came as KV")
    progress.begin("condition KVTransferVerified")
    progress.report(f"KVTransferVerified is True after {verified.wait_until_verified(scene):.0f} s more")
    for way in verified.BREAKS:
        progress.begin(way.what)
        progress.report(verified.break_and_repair(scene, way))
    progress.begin(f"KV blocked for {blocked.BLOCKED_SECONDS:.0f} s, two requests per second meanwhile")
    progress.report(blocked.serve_through(scene))
    progress.begin("another order, a request every 100 ms meanwhile")
    switched = steps.switch_order(scene, "DecodeFirst")
    progress.report(f"{switched} requests, none failed")
    progress.begin("other numbers of engines")
    steps.scale(scene)
    progress.begin("upgrade of operator and gateway, a request every 100 ms meanwhile")
    upgraded = steps.upgrade(scene)
    progress.report(f"{upgraded} requests, none failed, no engine restarted")
    progress.begin("kubectl delete")
    steps.remove(scene)
    moved = _prove_connectors(scene, progress)
    return (
        "helm install and kubectl apply served real vLLM prefill and decode pods through the gateway's Service, "
        f"{tokens} prompt tokens came as KV, the text was a single engine's; "
        f"KVTransferVerified and `pdx doctor` named each of {len(verified.BREAKS)} breaks and its repair; "
        "no request failed while KV was blocked; "
        f"no request of {switched + upgraded} failed during a change of order and an upgrade, and nothing was left. "
        f"Other connectors' examples moved tokens too: {', '.join(moved)}."
    )


def _prove_connectors(scene: Scene, progress: Progress) -> list[str]:
    """The tokens that each example moved."""
    moved = []
    for name in connectors.EXAMPLES:
        progress.begin(f"kubectl apply of examples/connectors/{name}.yaml")
        found = connectors.prove(Scene(scene.cluster, scene.namespace, scene.report, name))
        moved.append(f"{name} {found.external_tokens} of {found.prompt_tokens}")
        progress.report(f"{moved[-1]} tokens came as KV")
    return moved


if __name__ == "__main__":
    sys.exit(main())
