"""`pdx bench FILE --compare` with real engines on the CPU, twice with one trace: verdicts, and how goodputs differ."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.bench.lines import Line, append, read
from benchmarks.bench.servers import EXAMPLE

TRACE: Final = Path(__file__).parents[1] / "goodput" / "traces" / "mooncake-conversation.csv.gz"
SLEEPING_NIXL: Final = Path(__file__).parents[2] / "tests" / "engines" / "support" / "sleeping_nixl"
"""Otherwise, an idle progress thread of NIXL uses more than half of a core."""
FLAGS: Final = (
    *("--engine", "vllm", "--compare", "--devices", "2", "--ratios", "1:1", "--chunks", "512"),
    *("--scale-tokens", "1/32", "--poisson", "--ttft", "2s", "--tpot", "200ms"),
    *("--duration", "15s", "--warm-up", "3s", "--repeats", "2", "--start-rate", "4"),
)
RUNS: Final = 2
APART: Final = 0.2
"""By which part goodputs of the same arm may differ between the runs."""


def run(model: Path, folder: Path, results: Path) -> None:
    """Add the runs that the file of results lacks."""
    body: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    body["spec"]["model"]["source"]["path"] = str(model)
    cores = sorted(os.sched_getaffinity(0))
    body["spec"]["engine"]["env"] += _on_cores(cores[1:] or cores, folder)
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(body))
    runs = folder / "run"
    runs.mkdir()
    for index in range(len(read(results)), RUNS):
        output = folder / f"out-{index}"
        command = ["taskset", "-c", str(cores[0]), sys.executable, "-m", "pdx_cli", "bench", str(file), *FLAGS]
        arguments = [*command, "--run-dir", str(runs), "--trace", str(TRACE), "--output", str(output)]
        done = subprocess.run(arguments, check=False)
        if not (output / "result.json").exists():
            raise SystemExit("pdx bench has written no result; its message is above.")
        found = json.loads((output / "result.json").read_text())
        arms = {
            arm["name"]: {name: arm[name] for name in ("goodput", "goodputs", "bottleneck", "valid")}
            for arm in found["arms"]
        }
        line = {"run": index, "code": done.returncode, "verdict": found["verdict"], "load": found["load"], "arms": arms}
        append(results, line)


def _on_cores(cores: Sequence[int], folder: Path) -> list[dict[str, str]]:
    """Return the variables with which engines run on these cores. The load generator and the gateway have another.

    vLLM moves a CPU engine with NIXL to the last core (base_worker.py), so that core must be one of them.
    """
    programs = folder / "bin"
    programs.mkdir()
    installed = Path(sys.executable).parent
    vllm = programs / "vllm"
    vllm.write_text(f'#!/bin/sh\nexec taskset -c {",".join(map(str, cores))} {shlex.quote(f"{installed}/vllm")} "$@"\n')
    vllm.chmod(0o755)
    path = os.pathsep.join([str(programs), str(installed), os.environ["PATH"]])
    return [{"name": "PATH", "value": path}, {"name": "PYTHONPATH", "value": str(SLEEPING_NIXL)}]


def table(lines: Sequence[Line]) -> Iterator[str]:
    """Markdown: goodputs of both runs, and the verdicts."""
    yield "| arm | goodput of each run, req/s | apart |"
    yield "|---|---|---|"
    for name in lines[0]["arms"]:
        values = [line["arms"][name]["goodput"] for line in lines]
        yield f"| {name} | {', '.join(f'{each:.3g}' for each in values)} | {100 * _apart(values):.1f} % |"
    yield ""
    yield from (
        f"Run {line['run'] + 1}: {line['verdict']['kind']}. {' '.join(line['verdict']['sentences'])}" for line in lines
    )


def holds(lines: Sequence[Line]) -> bool:
    """Whether all runs have the same verdict, goodputs near each other, and a generator that was not the limit."""
    verdicts = {(line["verdict"]["kind"], line["verdict"]["winner"]) for line in lines}
    arms = [[line["arms"][name]["goodput"] for line in lines] for name in lines[0]["arms"]]
    valid = all(arm["valid"] for line in lines for arm in line["arms"].values())
    return valid and len(lines) == RUNS and len(verdicts) == 1 and all(_apart(values) <= APART for values in arms)


def _apart(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / max(values) if max(values) else 0.0
