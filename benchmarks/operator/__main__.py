"""`python -m benchmarks.operator`: measure the operator on a control plane with simulated nodes, write the table."""

import argparse
import datetime
import os
import platform
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from benchmarks.campaigns import recorded
from benchmarks.operator.watcher import Watcher
from pdx_api.kube.kinds import CHILD_KINDS, DEPLOYMENT, PDDEPLOYMENT, POD, Kind
from pdx_cluster.app import cluster as clusters
from pdx_cluster.app import kwok
from pdx_cluster.app.cluster import Cluster
from tests.cluster.runtime.harness import CHILDREN, Api, Operator, grant, install

README: Final = Path(__file__).parent / "README.md"
NAMESPACE: Final = "bench"
_START_SECONDS: Final = 300.0
_QUIET_SECONDS: Final = 20.0
_POLLS_SHARE: Final = 0.25
"""Of a core: more than the polls of 2,000 gateways take."""
BEGIN, END = "<!-- begin of the table: written by the benchmark -->", "<!-- end of the table -->"

SPEC: Final = {
    "model": {"name": "Qwen/Qwen3-8B"},
    "prefill": {"replicas": 4, "resources": {"limits": {"nvidia.com/gpu": 1}}},
    "decode": {"replicas": 4, "resources": {"limits": {"nvidia.com/gpu": 1}}},
    "gateway": {"replicas": 2},
}
"""Ten pods."""


@dataclass(slots=True)
class Bench:
    """One run."""

    cluster: Cluster
    api: Api
    kubeconfig: Path
    folder: Path
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    """What was measured, the value, the goal."""

    def row(self, what: str, value: str, goal: str = "") -> None:
        """Note a result."""
        self.rows.append((what, value, goal))
        progress(f"{what}: {value}")

    def operator(self) -> Operator:
        """A running operator."""
        operator = Operator.start(self.kubeconfig, self.folder)
        try:
            return operator.wait_until_working(_START_SECONDS)
        except AssertionError:
            operator.kill()
            raise


def progress(text: str) -> None:
    """A line of progress."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Measure everything; return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator", description=__doc__)
    parser.add_argument("--objects", type=int, default=1000, help="objects in the end, of ten pods (%(default)s)")
    parser.add_argument("--settled", type=int, default=100, help="objects that are left alone (%(default)s)")
    parser.add_argument("--seconds", type=float, default=120, help="for how long (%(default)s)")
    parser.add_argument("--one-by-one", type=int, default=30, help="objects made one after the other (%(default)s)")
    parser.add_argument("--nodes", type=int, default=100, help="simulated nodes (%(default)s)")
    parser.add_argument("--patience", type=float, default=420, help="seconds for all to be at rest (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="write nothing into the checkout")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = clusters.up(Path(folder) / "state", progress, bound=True)
        try:
            kwok.start(cluster, given.nodes, progress)
            install(cluster)
            cluster.kubectl("create", "namespace", NAMESPACE)
            bench = Bench(cluster, Api(cluster), grant(cluster, Path(folder)), Path(folder))
            measure(bench, given)
        finally:
            clusters.down(Path(folder) / "state")
    text = table(bench, given)
    progress(text)
    if not given.keep:
        write(text)
    return 0


def measure(bench: Bench, given: argparse.Namespace) -> None:
    """All phases, on one operator but for the last."""
    operator = bench.operator()
    try:
        bench.row("memory with no object", f"{memory(operator)[0]:.0f} MiB")
        one_by_one(bench, given.one_by_one)
        make(bench, given.one_by_one, given.settled)
        await_settled(bench, given.settled, given.patience)
        rest(bench, operator, given.settled, given.seconds, given.patience)
        if given.objects > given.settled:
            grow(bench, operator, given.settled, given.objects, given.patience)
            rest(bench, operator, given.objects, min(given.seconds, 30), given.patience)
    finally:
        operator.end()
    anew(bench, given.objects, given.patience)


def one_by_one(bench: Bench, count: int) -> None:
    """From the answer to the create request until the last child is seen."""
    watcher = Watcher(bench.cluster, NAMESPACE)
    time.sleep(1)
    times = []
    for number in range(count):
        bench.api.deploy(NAMESPACE, f"q{number}", SPEC)
        began = time.monotonic()
        while len(watcher.seen[f"q{number}"]) < CHILDREN:
            time.sleep(0.01)
        times.append((max(watcher.seen[f"q{number}"]) - began) * 1000)
        time.sleep(0.5)
    times.sort()
    bench.row("apply to all children, p50", f"{times[len(times) // 2]:.0f} ms", "≤ 300 ms")
    bench.row("apply to all children, p99", f"{times[-1 - len(times) // 100]:.0f} ms")


def rest(bench: Bench, operator: Operator, objects: int, seconds: float, patience: float) -> None:
    """The cost of settled objects."""
    await_quiet(bench, patience)
    before, used, events = writes(bench), operator.cpu_seconds(), count_events(bench)
    time.sleep(seconds)
    share = (operator.cpu_seconds() - used) / seconds
    written = writes(bench) - before + count_events(bench) - events
    bench.row(f"{objects} settled objects, {seconds:.0f} s: writes", f"{written:.0f}", "0")
    bench.row(
        f"{objects} settled objects, {seconds:.0f} s: share of a core",
        f"{share:.2%}",
        "< 1 %" if objects <= 100 else "",
    )


def grow(bench: Bench, operator: Operator, first: int, last: int, patience: float) -> None:
    """From some objects to all."""
    before, reads, events = writes(bench), counted(bench, "GET|LIST"), count_events(bench)
    used, began, made = operator.cpu_seconds(), time.monotonic(), last - first
    make(bench, first, last)
    bench.row(f"{made} objects more: created by the client in", f"{time.monotonic() - began:.0f} s")
    await_children(bench, last)
    bench.row(f"{made} objects more: all children exist after", f"{time.monotonic() - began:.0f} s")
    settled = await_settled(bench, last, patience)
    taken = f"{time.monotonic() - began:.0f} s" if settled >= last else f"not within {patience:.0f} s: {settled}"
    bench.row(f"{made} objects more: all Ready and at rest after", taken)
    time.sleep(5)
    new_events = count_events(bench) - events
    total = writes(bench) - before + new_events
    now, most = memory(operator)
    bench.row("the operator's processor time per object", f"{(operator.cpu_seconds() - used) / made * 1000:.0f} ms")
    bench.row("writes per object, Events included", f"{total / made:.1f}", "≤ 25")
    bench.row("of these Events", f"{new_events / made:.1f}")
    bench.row("reads per object, of all programs", f"{(counted(bench, 'GET|LIST') - reads) / made:.1f}")
    bench.row(f"memory with {last} objects", f"{now:.0f} MiB, at most {most:.0f} MiB", "< 300 MiB")
    bench.row("pods", f"{count(bench, POD)}")


def anew(bench: Bench, objects: int, patience: float) -> None:
    """The start of an operator on existing objects."""
    before, events, began = writes(bench), count_events(bench), time.monotonic()
    operator = bench.operator()
    try:
        used = operator.cpu_seconds()
        # It is at rest when only the polls of gateways are left, which do not answer here.
        while time.monotonic() - began < patience:
            time.sleep(2)
            used, last = operator.cpu_seconds(), used
            if used - last < _POLLS_SHARE * 2:
                break
        bench.row(f"a new operator on {objects} objects is at rest after", f"{time.monotonic() - began - 2:.0f} s")
        bench.row("its writes", f"{writes(bench) - before + count_events(bench) - events:.0f}", "0")
        bench.row("its memory", f"at most {memory(operator)[1]:.0f} MiB", "< 300 MiB")
    finally:
        operator.end()


def make(bench: Bench, first: int, last: int) -> None:
    """Create objects."""
    for number in range(first, last):
        bench.api.deploy(NAMESPACE, f"q{number}", SPEC)


def await_children(bench: Bench, objects: int) -> None:
    """Return once all children of all objects exist."""
    while True:
        with suppress(OSError, HTTPException):  # an API server without a free core ends requests
            if count(bench, DEPLOYMENT) >= 3 * objects:  # the other kinds are written first
                return
        time.sleep(2)


def count(bench: Bench, kind: Kind) -> int:
    """Return how many objects of a kind exist. Of a page, the API server reports how many follow."""
    page = bench.api.request("GET", f"{kind.path(NAMESPACE)}?limit=1")
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)


def await_settled(bench: Bench, objects: int, patience: float) -> int:
    """Return once all objects are Ready and none progresses, or after `patience` seconds: how many are so."""
    end, settled = time.monotonic() + patience, 0
    while True:
        with suppress(OSError, HTTPException):
            found = [conditions(body) for body in bench.api.items(PDDEPLOYMENT, NAMESPACE, limit="100")]
            settled = sum(c.get("Ready") == "True" and c.get("Progressing") == "False" for c in found)
        if settled >= objects or time.monotonic() > end:
            return settled
        time.sleep(5)


def await_quiet(bench: Bench, patience: float) -> None:
    """Return once nothing was written for a while, or after `patience` seconds.

    Gateways of simulated pods do not answer. The operator reports that some time after the object is Ready.
    """
    end, before = time.monotonic() + patience, -1.0
    while time.monotonic() < end and (now := writes(bench)) != before:
        before = now
        time.sleep(_QUIET_SECONDS)


def conditions(body: dict[str, Any]) -> dict[str, str]:
    """Status by type."""
    return {c["type"]: c["status"] for c in (body.get("status") or {}).get("conditions") or ()}


def writes(bench: Bench) -> float:
    """Writes of the operator without Events: no other program uses server-side apply."""
    return bench.cluster.metric("apiserver_request_total", verb="APPLY")


def counted(bench: Bench, verbs: str) -> float:
    """Requests for the kinds that the operator uses."""
    resources = "|".join([PDDEPLOYMENT.plural, POD.plural, *(kind.plural for kind in CHILD_KINDS)])
    return bench.cluster.metric("apiserver_request_total", verb=verbs, resource=resources)


def count_events(bench: Bench) -> int:
    """Events of the operator."""
    return len(bench.api.events(NAMESPACE))


def memory(operator: Operator) -> tuple[float, float]:
    """Resident memory now and at most, in MiB."""
    status = Path(f"/proc/{operator.process.pid}/status").read_text()
    sizes = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith("Vm")}
    return int(sizes["VmRSS"]) / 1024, int(sizes["VmHWM"]) / 1024


def table(bench: Bench, given: argparse.Namespace) -> str:
    """The results as Markdown."""
    cores, load = os.cpu_count(), os.getloadavg()[2]
    machine = f"{cores} cores, Linux {platform.release()}, Python {platform.python_version()}"
    head = (
        f"Measured on {datetime.datetime.now(datetime.UTC):%Y-%m-%d}: {machine}; etcd, API server, controllers, "
        f"scheduler and {given.nodes} simulated nodes on the same cores (load over 15 minutes: {load:.1f})."
    )
    lines = [f"| {what} | {value} | {goal} |" for what, value, goal in bench.rows]
    return "\n".join([head, "", "| | measured | goal |", "|---|---|---|", *lines])


def write(text: str) -> None:
    """Put the table into the README."""
    old = README.read_text()
    before, after = old.split(BEGIN)[0], old.split(END)[1]
    README.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(recorded("python3 -m benchmarks.operator", main, whole=not sys.argv[1:]))
