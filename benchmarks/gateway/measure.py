"""One run: a load on a gateway, with the gateway's CPU time and the engines' counts of the same time."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.gateway import processes
from benchmarks.gateway.gateways import Engines, Gateway, admin_port
from benchmarks.gateway.loads import Load

Result = dict[str, Any]
"""The generator's output, and:

cpu_ms: of one request, user and system; cpu_share: of one core; others_share: of one core, used by the other gateways
meanwhile; foreign_share: used by anything else on the gateways' cores; engines: their counts of this run. From PDX
also waited: requests that waited in the queue, about in the window; limits: the engines' limits after it; settled:
whether they were the same before it.
"""

_WAITED: Final = re.compile(r'^pdx_phase_seconds_count\{phase="queue"\} (\S+)', re.MULTILINE)
_LIMITS: Final = re.compile(r"^pdx_leg_limit\{[^}]*\} (\S+)", re.MULTILINE)
_CORES: Final = "cores"
"""Name of the share of the gateways' cores that all processes used together."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The parts of a run."""

    generator: Path
    engines: Engines
    gateway_cores: str
    load_cores: str
    pids: dict[str, int]
    """The gateways that run, by name."""


def run(bench: Bench, gateway: Gateway, load: Load, seconds: float) -> Result:
    """Put a load on a gateway."""
    ports = (gateway.port,) if gateway.port else bench.engines.decode
    command = ["taskset", "-c", bench.load_cores, str(bench.generator), *load.arguments(ports, seconds)]
    before = processes.get_json(bench.engines.decode[0], "/counts")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as generator:
        assert generator.stdout is not None
        assert generator.stderr is not None
        generator.stdout.readline()
        begin = _cpu(bench)
        queue_before = _queue(gateway) if load.settles else None
        generator.stdout.readline()
        end = _cpu(bench)
        queue_after = _queue(gateway) if load.settles else None
        report, complaint = generator.stdout.read(), generator.stderr.read()
    if generator.returncode:
        return {"failed": complaint.strip()[-300:]}
    result: Result = json.loads(report)
    after = processes.get_json(bench.engines.decode[0], "/counts")
    result["engines"] = {key: after[key] - before[key] for key in before if isinstance(before[key], int)}
    used = {name: end[name] - begin[name] for name in begin}
    foreign = used.pop(_CORES)
    own = used.pop(gateway.name, 0.0)
    result["cpu_share"] = own / result["seconds"]
    result["others_share"] = sum(used.values()) / result["seconds"]
    result["foreign_share"] = max(0.0, foreign - own - sum(used.values())) / result["seconds"]
    if queue_before is not None and queue_after is not None:
        result["waited"] = queue_after[0] - queue_before[0]
        result["limits"], result["settled"] = queue_after[1], queue_before[1] == queue_after[1]
    result["cpu_ms"] = 1000 * own / result["requests"] if result["requests"] else None
    return result


def read_queue(admin: int) -> tuple[float, list[float]]:
    """Requests that have waited in PDX's queue since its start, and the limit of each of its engines.

    `admin`: its admin port. Commit 2109863 has no limits of this kind.
    """
    page = processes.get_text(admin, "/metrics")
    waited = _WAITED.search(page)
    return float(waited[1]) if waited else 0.0, [float(limit) for limit in _LIMITS.findall(page)]


def _queue(gateway: Gateway) -> tuple[float, list[float]] | None:
    """The same with each limit once; None for a gateway that is not PDX."""
    if not gateway.name.startswith("pdx"):
        return None
    waited, limits = read_queue(admin_port(gateway.port))
    return waited, sorted(set(limits))


def _cpu(bench: Bench) -> dict[str, float]:
    used = {name: processes.cpu_seconds(pid) for name, pid in bench.pids.items()}
    return {**used, _CORES: processes.busy_seconds(bench.gateway_cores)}
