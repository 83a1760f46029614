"""Both tools as a user starts them, and the figures that they report."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.bench.requests import LEAD, SEED, Requests

PDX: Final = "pdx bench"
VLLM: Final = "vllm bench serve"
_QUIET: Final = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


@dataclass(frozen=True, slots=True)
class Figures:
    """What a tool reports about one run. Times in milliseconds, rates per second."""

    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    requests: float
    tokens: float
    completed: int
    failed: int

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> "Figures":
        """From the keys that both tools write."""
        return cls(
            body["median_ttft_ms"],
            body["p99_ttft_ms"],
            body["median_tpot_ms"],
            body["p99_tpot_ms"],
            body["request_throughput"],
            body["output_throughput"],
            body["completed"],
            body.get("failed", 0),
        )

    def document(self) -> dict[str, float]:
        """For the results."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Subject:
    """A server that is measured."""

    url: str
    model: str


def pdx(subject: Subject, requests: Requests) -> Figures:
    """Run `pdx bench`."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--trace", str(requests.trace), "--scale-time", "1", "--repeats", "1", "--model", subject.model]
        flags += ["--warm-up", f"{LEAD / 2}s", "--duration", f"{requests.seconds + LEAD / 2:.6f}s"]
        flags += ["--ttft", "60s", "--tpot", "10s", "--output", folder]
        _run([sys.executable, "-m", "pdx_cli", "bench", subject.url, *flags])
        return Figures.read(json.loads((Path(folder) / "vllm-the-server.json").read_text()))


def vllm(subject: Subject, requests: Requests) -> Figures:
    """Run `vllm bench serve`."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--backend", "openai", "--base-url", subject.url, "--endpoint", "/v1/completions"]
        flags += ["--model", subject.model, "--tokenizer", str(requests.tokenizer), "--disable-tqdm"]
        flags += ["--dataset-name", "sharegpt", "--dataset-path", str(requests.dataset), "--disable-shuffle"]
        flags += ["--num-prompts", str(requests.count)]
        flags += ["--request-rate", f"{requests.rate}", "--seed", str(SEED), "--ignore-eos", "--temperature", "0"]
        flags += ["--save-result", "--result-dir", folder, "--result-filename", "result.json"]
        _run([str(Path(sys.executable).with_name("vllm")), "bench", "serve", *flags])
        return Figures.read(json.loads((Path(folder) / "result.json").read_text()))


TOOLS: Final[Mapping[str, Callable[[Subject, Requests], Figures]]] = {VLLM: vllm, PDX: pdx}


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, env={**os.environ, **_QUIET}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
