"""Memory: of a worker under a mixed load with bodies of 1 MB, and of an open stream."""

import json
import re
import subprocess
import time
from typing import Any, Final

from benchmarks.gateway import processes
from benchmarks.gateway.gateways import PDX, PDX_TWO, admin_port
from benchmarks.gateway.loads import Load
from benchmarks.gateway.measure import Bench

_PAUSE: Final = 2.0
_OPENING_SECONDS: Final = 10.0
_OPEN_SECONDS: Final = 6.0
"""How long it is measured, from twice the time in which the streams are opened."""
_STREAM_TOKENS: Final = 30
"""Of each stream, one per second."""
_IN_FLIGHT: Final = re.compile(r"^pdx_requests_in_flight(?:\{[^}]*\})? (\S+)", re.MULTILINE)
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


def measure_streams(bench: Bench, streams: int) -> dict[str, Any]:
    """Hold so many streams open at two workers; return what each one adds to the resident memory of the gateway.

    Two workers, because a worker has two files for each stream, and many machines allow a process 20,000 of them.
    """
    pid = bench.pids[PDX_TWO.name]
    load = Load("streams", streams, tokens=_STREAM_TOKENS, stream=True, rate=1, warmup=2 * _OPENING_SECONDS)
    command = [str(bench.generator), *load.arguments((PDX_TWO.port,), _OPEN_SECONDS)]
    idle = sum(processes.resident_bytes(pid))
    with subprocess.Popen(
        ["taskset", "-c", bench.load_cores, *command], stdout=subprocess.PIPE, text=True
    ) as generator:
        assert generator.stdout is not None
        generator.stdout.readline()
        time.sleep(_OPEN_SECONDS / 2)
        loaded = sum(processes.resident_bytes(pid))
        page = processes.get_text(admin_port(PDX_TWO.port), "/metrics")
        generator.stdout.readline()
        report = json.loads(generator.stdout.read())
    opened = sum(map(float, _IN_FLIGHT.findall(page)))
    return {
        "streams": opened,
        "idle_mb": idle / 1e6,
        "open_mb": loaded / 1e6,
        "kb_per_stream": (loaded - idle) / 1e3 / opened if opened else None,
        "errors": report["errors"] + report["unfinished"],
    }
