"""The servers that are measured: one engine each, whose answers do not depend on what it has served before."""

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.bench.requests import ARM
from benchmarks.bench.tools import Subject
from benchmarks.soak.program import free_port
from pdx_api.spec.parse import parse
from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.bench.arms.local import LocalArms
from pdx_cli.bench.calibration import calibrate
from pdx_cli.bench.load.connection import Server
from pdx_cli.bench.load.generator import Shape
from pdx_cli.bench.load.traces import read
from pdx_cli.bench.load.workload import Traced
from pdx_cli.local.engines import EngineKind

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "tiny-cpu.yaml"
SIM_FLAGS: Final = ("--step-seconds", "0.04", "--step-sequence-seconds", "0.0002", "--step-token-seconds", "0.00001")
"""Steps of 40 ms and more, so that what Python and loopback take is a small part."""


@asynccontextmanager
async def server(kind: EngineKind, model: Path, root: Path, trace: Path) -> AsyncIterator[tuple[Subject, Shape]]:
    """A server, and how requests for it are made."""
    async with _sim() if kind is EngineKind.SIM else _vllm(model, root) as subject:
        load = Traced(read(trace))
        first = await calibrate(Server.of(subject.url), Shape(subject.model), load, random.Random(0), "first")
        yield subject, first.shape


@asynccontextmanager
async def _sim() -> AsyncIterator[Subject]:
    """A simulated engine without a gateway, whose limits of legs would depend on earlier requests."""
    port = free_port()
    command = [sys.executable, "-m", "pdx_cli", "sim", "--role", "aggregated", "--listen", f"127.0.0.1:{port}"]
    process = await asyncio.create_subprocess_exec(*command, *SIM_FLAGS, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield Subject(f"http://127.0.0.1:{port}", "sim")
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def _vllm(model: Path, root: Path) -> AsyncIterator[Subject]:
    """One real engine behind its gateway. Without a prefix cache, the tool that runs second finds no more."""
    body: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    spec = body["spec"]
    spec["model"]["source"]["path"] = str(model)
    spec["mode"] = "Aggregated"
    spec["aggregated"] = {"replicas": 1}
    spec["engine"]["args"].append("--no-enable-prefix-caching")
    async with LocalArms(root, EngineKind.VLLM).running(parse(body), Arm(ARM)) as target:
        yield Subject(f"http://{target.server.host}:{target.server.port}", target.model)
