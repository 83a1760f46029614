"""The engine as a process."""

import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

from pdx_sim import SimSettings
from pdx_sim.main import run

CODE = "import sys; from pdx_sim.main import run; from pdx_sim import SimSettings; sys.exit(run(SimSettings({})))"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_serves_until_a_signal(number: signal.Signals, unused_tcp_port: int) -> None:
    with subprocess.Popen([sys.executable, "-c", CODE.format(f"port={unused_tcp_port}")]) as process:
        try:
            deadline = time.monotonic() + 10
            while not _is_healthy(unused_tcp_port):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(number)
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_the_url_of_an_ipv6_address_has_brackets(unused_tcp_port: int) -> None:
    code = CODE.format(f"host='::1', port={unused_tcp_port}")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"pdx sim: serving on http://[::1]:{unused_tcp_port}\n"
        finally:
            process.kill()


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


@pytest.mark.parametrize(("busy", "flag"), [("port", "--listen"), ("side_channel_port", "--side-channel")])
def test_a_port_in_use(busy: str, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        output = _refusal(f"kv_both=True, {busy}={port}")
    refusal = f"pdx sim: cannot listen on 127.0.0.1:{port}: Address already in use"
    assert output == f"{refusal}; choose another with {flag}.\n"


@pytest.mark.parametrize("busy", ["port", "side_channel_port"])
def test_a_port_in_use_leaves_nothing_open(busy: str, unused_tcp_port: int) -> None:
    free = "side_channel_port" if busy == "port" else "port"
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = SimSettings(kv_both=True, **{busy: server.getsockname()[1], free: unused_tcp_port})
        before = threading.active_count()
        assert [run(settings) for _ in range(2)] == [2, 2]
        assert threading.active_count() == before
    socket.create_server(("127.0.0.1", unused_tcp_port)).close()


@pytest.mark.parametrize("host", ["x" * 64 + ".example", "192.0.2.1"])
def test_a_host_of_another_machine(host: str) -> None:
    output = _refusal(f"host={host!r}")
    assert output.startswith(f"pdx sim: cannot listen on {host}:0: ")
    assert output.count("\n") == 1


def _refusal(settings: str) -> str:
    """The stderr of a process that ends with 2 for these settings."""
    ended = subprocess.run([sys.executable, "-c", CODE.format(settings)], capture_output=True, text=True, timeout=20)
    assert ended.returncode == 2
    return ended.stderr
