"""`pdx up --once`, as `make run ONCE=1` runs it: examples/tiny-cpu.yaml with real vLLM, in every order and mode."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.harness import ROOT

MOVED = "KV moved: yes"
NONE = "KV moved: none, as mode Aggregated means it"


@pytest.mark.parametrize(
    ("setting", "verdict"),
    [
        ("spec.kvTransfer.order=PrefillFirst", MOVED),
        ("spec.kvTransfer.order=DecodeFirst", MOVED),
        ("spec.kvTransfer.order=Concurrent", MOVED),
        ("spec.mode=Aggregated", NONE),
    ],
)
def test_the_proof(tiny_model: Path, tmp_path: Path, setting: str, verdict: str) -> None:
    command = [
        *(sys.executable, "-m", "pdx_cli", "up", str(ROOT / "examples/tiny-cpu.yaml"), "--once"),
        *("--set", f"spec.model.source.path={tiny_model}", "--set", setting, "--run-dir", str(tmp_path / "run")),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert ended.stdout.splitlines()[-1] == verdict
