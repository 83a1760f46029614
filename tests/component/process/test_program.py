"""`python -m pdx_proxy` without a cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

CASES = [
    ({}, "no service account and no usable kubeconfig: Service host/port is not set"),
    ({"KUBECONFIG": "/nowhere/kubeconfig"}, "KUBECONFIG is /nowhere/kubeconfig, which is not a file"),
]


@pytest.mark.parametrize(("env", "reason"), CASES)
def test_it_ends_with_one_line_without_a_cluster(env: dict[str, str], reason: str, tmp_path: Path) -> None:
    ports = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "PYTHON"))}
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pdx_proxy", "--deployment", "tiny", "--namespace", "models"),
            *("--listen", ports[0], "--admin", ports[1]),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=tmp_path,
        env={**clean, "HOME": str(tmp_path), **env},
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == f"pdx gateway: cannot reach a cluster: {reason}.\n"
