"""The engine as a process."""

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

CODE = "import sys; from pdx_sim.main import run; from pdx_sim import SimSettings; sys.exit(run(SimSettings(port={})))"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_serves_until_told_to_stop(number: signal.Signals, unused_tcp_port: int) -> None:
    with subprocess.Popen([sys.executable, "-c", CODE.format(unused_tcp_port)]) as process:
        try:
            deadline = time.monotonic() + 10
            while not _is_healthy(unused_tcp_port):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(number)
            assert process.wait(10) == 0
        finally:
            process.kill()


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False
