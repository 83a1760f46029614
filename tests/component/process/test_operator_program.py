"""The operator's program where it cannot start."""

import os
import socket
import subprocess
import sys
from pathlib import Path

_KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: a, user: {}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
"""


def test_a_port_in_use_is_refused_in_one_sentence(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(_KUBECONFIG)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "pdx_operator", "--health-port", str(port)],
            capture_output=True,
            check=False,
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            text=True,
            timeout=60,
        )
    reason = f"cannot listen on port {port}: Address already in use; choose another port with --health-port"
    assert (done.returncode, done.stderr) == (1, f"pdx operator: {reason}\n")
