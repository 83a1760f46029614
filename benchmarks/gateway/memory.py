"""Memory of a worker under a mixed load with bodies of 1 MB."""

import subprocess
import time
from typing import Any, Final

from benchmarks.gateway import processes
from benchmarks.gateway.gateways import PDX
from benchmarks.gateway.loads import Load
from benchmarks.gateway.measure import Bench

_PAUSE: Final = 2.0
_MIX: Final = (
    Load("memory-plain", connections=32),
    Load("memory-stream", connections=32, stream=True, tokens=64, rate=50),
    Load("memory-100k", connections=8, prompt=100_000),
    Load("memory-1m", connections=8, prompt=1_000_000),
)
LIMIT_MB: Final = 100
FLAT: Final = 1.1
"""The last third may hold this much more than the second."""


def measure(bench: Bench, seconds: float) -> dict[str, Any]:
    """Run the mixed load for so long; megabytes of the largest process of the gateway."""
    pid = bench.pids[PDX.name]
    generators = [
        subprocess.Popen(
            ["taskset", "-c", bench.load_cores, str(bench.generator), *load.arguments((PDX.port,), seconds)],
            stdout=subprocess.DEVNULL,
        )
        for load in _MIX
    ]
    samples = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(_PAUSE)
        samples.append(max(processes.resident_bytes(pid), default=0) / 1e6)
    for generator in generators:
        generator.wait()
    third = len(samples) // 3
    middle, last = max(samples[third : 2 * third]), max(samples[2 * third :])
    return {
        "seconds": seconds,
        "most_mb": max(samples),
        "middle_third_mb": middle,
        "last_third_mb": last,
        "samples_mb": [round(sample, 1) for sample in samples],
        "gate_met": max(samples) <= LIMIT_MB and last <= FLAT * middle,
    }
