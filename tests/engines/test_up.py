"""`pdx up --once`, as `make run ONCE=1` runs it, with real vLLM.

A connector with a side service runs always, and test_laptop.py runs `pdx up` with NIXL. The other examples, the orders
and mode Aggregated run in `make soak`. The other files here move KV with their connectors, test_aggregated.py serves in
mode Aggregated, and component/cli/test_up.py runs `pdx up` with the other connectors and in that mode.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.support.harness import ROOT
from tests.engines.support.mooncake import libraries
from tests.engines.support.preloaded import NICENESS

MOVED = "KV moved: yes"
WITH_MOONCAKE = ("connectors/lmcache", "connectors/lmcache-p2p", "connectors/mooncake-store")
NONE = "KV moved: none, as expected in mode Aggregated"


@pytest.mark.parametrize(
    ("example", "setting", "verdict"),
    [
        ("connectors/mooncake-store", "spec.prefill.replicas=1", MOVED),
        pytest.param("tiny-cpu", "spec.mode=Aggregated", NONE, marks=pytest.mark.soak),
        *(
            pytest.param(example, setting, MOVED, marks=pytest.mark.soak)
            for example, setting in (
                ("tiny-cpu", "spec.kvTransfer.order=DecodeFirst"),
                ("tiny-cpu", "spec.kvTransfer.order=Concurrent"),
                ("connectors/nixl", "spec.prefill.replicas=1"),
                ("connectors/shared-storage", "spec.prefill.replicas=1"),
                ("connectors/custom", "spec.prefill.replicas=1"),
                ("connectors/lmcache", "spec.prefill.replicas=1"),
                ("connectors/lmcache-p2p", "spec.prefill.replicas=1"),
            )
        ),
    ],
)
def test_the_proof(tiny_model: Path, tmp_path: Path, example: str, setting: str, verdict: str) -> None:
    command = [
        *("nice", "-n", str(NICENESS), sys.executable, "-m", "pdx_cli"),
        *("up", str(ROOT / f"examples/{example}.yaml"), "--once"),
        *("--set", f"spec.model.source.path={tiny_model}", "--set", setting, "--run-dir", str(tmp_path / "run")),
    ]
    env = {**os.environ, **(libraries() if example in WITH_MOONCAKE else {})}
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert ended.stdout.splitlines()[-1] == verdict
