"""`pdx up` as a user runs it, with simulated engines: real processes and signals, and no process left."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pdx_cli.local import ports
from pdx_cli.runs.run_record import SCRATCH, RunDirectory
from tests.component.cli.programs import SECONDS, TEST_SECONDS, Mark, eventually

TINY = str(Path(__file__).parents[3] / "examples" / "tiny-cpu.yaml")
pytestmark = pytest.mark.timeout(TEST_SECONDS)
STORE = pytest.param("MooncakeStore", marks=pytest.mark.soak)
"""`make test` runs it with real engines."""


class Run:
    """One `pdx up`. Every process that it starts has the mark in its environment."""

    def __init__(self, state: Path, *argv: str) -> None:
        self.mark = Mark()
        self.port = ports.allocate(1)[0]
        self.env = {**self.mark.env, "XDG_STATE_HOME": str(state)}
        self.logs = state / "pdx" / "tiny" / "logs"
        command = ["up", TINY, "--engine", "sim", "--port", str(self.port), *argv]
        self.process = subprocess.Popen(
            self._pdx(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env
        )

    def _pdx(self, *argv: str) -> list[str]:
        return [sys.executable, "-P", "-m", "pdx_cli", *argv]

    def lines_until(self, part: str) -> list[str]:
        """The printed lines, up to the line with this part."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line.rstrip("\n"))
            if part in line:
                return lines
        raise AssertionError(f"it ended without {part!r}: {lines} {self.process.communicate()[1]}")

    def status(self) -> list[dict[str, Any]]:
        """The runs that are up, by `pdx status --json`."""
        shown = subprocess.run(self._pdx("status", "--json"), capture_output=True, text=True, env=self.env, check=True)
        runs: list[dict[str, Any]] = json.loads(shown.stdout)
        return [each for each in runs if each["running"]]

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err

    def marked(self) -> set[int]:
        """Every process of this run that is no zombie."""
        return self.mark.pids()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(*argv: str) -> Run:
        runs.append(Run(tmp_path, *argv))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.mark.end()
        run.process.communicate()


@pytest.mark.parametrize("order", ["PrefillFirst", "DecodeFirst", "Concurrent"])
def test_once_proves_that_kv_moved(order: str, up: Callable[..., Run]) -> None:
    run = up("--once", "--set", f"spec.kvTransfer.order={order}", "--set", "spec.prefill.replicas=2")
    code, out, err = run.end()
    assert (code, out.splitlines()[-1]) == (0, "KV moved: yes"), err
    assert f"  order      {order} (NIXL)" in out
    assert "  prefill    prefill-" in out
    assert "  decode     decode-0" in out
    assert "of 600 prompt tokens came through the connector" in out
    assert run.marked() == set()


@pytest.mark.parametrize("family", ["Pull", pytest.param("Pool", marks=pytest.mark.soak)])
def test_once_proves_a_custom_connector(family: str, up: Callable[..., Run]) -> None:
    own = f"{{connector: Custom, custom: {{className: MyConnector, family: {family}}}}}"
    run = up("--once", "--set", f"spec.kvTransfer={own}")
    code, out, err = run.end()
    assert (code, out.splitlines()[-1]) == (0, "KV moved: yes"), err
    assert "  order      PrefillFirst (Custom)" in out


def test_once_proves_that_kv_moved_with_mooncake(up: Callable[..., Run]) -> None:
    run = up("--once", "--set", "spec.kvTransfer={connector: Mooncake}")
    code, out, err = run.end()
    assert (code, out.splitlines()[-1]) == (0, "KV moved: yes"), err
    assert "(Mooncake)" in out
    assert run.marked() == set()


@pytest.mark.parametrize("connector", ["SharedStorage", "LMCache", "LMCacheP2P", STORE])
def test_once_proves_that_kv_went_through_a_pool(connector: str, up: Callable[..., Run]) -> None:
    storage = "storage: {persistentVolumeClaim: {claimName: kv}}"
    run = up("--once", "--set", f"spec.kvTransfer={{connector: {connector}, {storage}}}")
    code, out, err = run.end()
    assert (code, out.splitlines()[-1]) == (0, "KV moved: yes"), err
    assert f"  order      PrefillFirst ({connector})" in out
    assert run.marked() == set()


def test_once_in_mode_aggregated_moves_nothing(up: Callable[..., Run]) -> None:
    run = up("--once", "--set", "spec.mode=Aggregated")
    code, out, err = run.end()
    assert (code, out.splitlines()[-1]) == (0, "KV moved: none, as expected in mode Aggregated"), err
    assert "equal to a single engine's (aggregated-" in out
    assert run.marked() == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_serves_until_a_signal_and_leaves_nothing(number: signal.Signals, up: Callable[..., Run]) -> None:
    run = up()
    printed = run.lines_until("Ctrl-C stops everything")
    assert "KV moved: yes" in printed
    assert f"  http://127.0.0.1:{run.port}/v1" in printed
    assert len(run.marked()) >= 5, "pdx up, its reaper, two engines and the gateway"
    (status,) = run.status()
    assert [(p["name"], p["alive"], p["state"]) for p in status["processes"]] == [
        ("prefill-0", True, "Warm"),
        ("decode-0", True, "Warm"),
        ("gateway", True, None),
    ]
    assert (status["name"], status["order"], status["gateway"]["ready"]) == ("tiny", "PrefillFirst", True)
    run.process.send_signal(number)
    code, _, err = run.end()
    assert (code, err.splitlines()[-1]) == (0, "Stopping")
    assert run.marked() == set()
    assert run.status() == []


def test_the_curl_line_works(up: Callable[..., Run]) -> None:
    run = up()
    line = next(line for line in run.lines_until("Ctrl-C stops everything") if "curl" in line)
    curl, silent, url, h, header, d, body = shlex.split(line)
    assert (curl, silent, h, d) == ("curl", "-s", "-H", "-d")
    name, _, value = header.partition(": ")
    request = urllib.request.Request(url, data=body.encode(), headers={name: value})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=SECONDS) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 32


@pytest.mark.parametrize("moment", ["first engine", "serving"])
def test_nothing_survives_a_killed_pdx_up(moment: str, up: Callable[..., Run]) -> None:
    run = up()
    if moment == "serving":
        run.lines_until("Ctrl-C stops everything")
    else:
        assert eventually(lambda: (run.logs / "prefill-0.log").exists())
    run.process.kill()
    assert eventually(lambda: run.marked() == set())
    assert run.status() == []


def test_status_reports_when_a_pdx_up_was_killed_and_removes_what_it_left(up: Callable[..., Run]) -> None:
    run = up()
    run.lines_until("Ctrl-C stops everything")
    directory = RunDirectory(run.logs.parent)
    left = [Path(path) for path in json.loads((directory.path / SCRATCH).read_text())["directories"]]
    assert all(path.is_dir() for path in left)
    idle = max(log.stat().st_mtime for log in run.logs.glob("*.log"))
    time.sleep(2.0)  # the last log line is older than the end
    killed = time.time()
    run.process.kill()
    assert eventually(lambda: run.marked() == set())
    gone = time.time()
    assert run.status() == []
    ending = directory.ending()
    assert (ending.name, ending.why, ending.is_exact) == ("tiny", "`pdx up` was killed", True)
    assert idle < killed - 1.0 <= ending.at <= gone
    assert not any(path.exists() for path in left)
    assert sorted(path.name for path in directory.path.iterdir()) == ["ending.json", "lock", "logs"]


def test_an_engine_that_dies_during_start(up: Callable[..., Run]) -> None:
    # The simulator refuses a context that its blocks cannot hold.
    run = up("--set", "spec.engine.maxModelLen=16000000")
    code, out, err = run.end()
    assert (code, out) == (1, "")
    message = next(line for line in err.splitlines() if line.startswith("pdx: "))
    assert "-0 exited with code 2; " in message
    assert message.endswith("-0.log ends with:")
    assert err.splitlines()[-1].startswith("    pdx: num_blocks * block_size must hold")
    assert run.marked() == set()


def test_an_engine_that_dies_while_serving(up: Callable[..., Run]) -> None:
    run = up()
    run.lines_until("Ctrl-C stops everything")
    (status,) = run.status()
    os.killpg(next(p["pid"] for p in status["processes"] if p["name"] == "decode-0"), signal.SIGKILL)
    code, _, err = run.end()
    assert code == 1
    assert "pdx: decode-0 was killed by signal 9 (SIGKILL) (if nobody killed it, the kernel may have run out of " in err
    assert run.marked() == set()


def test_engines_that_do_not_become_healthy_in_time(up: Callable[..., Run]) -> None:
    run = up("--start-timeout", "0")
    code, out, err = run.end()
    assert (code, out) == (1, "")
    assert "-0 was not healthy after 0 s (--start-timeout); " in err
    assert run.marked() == set()


def test_the_serving_port_in_use(up: Callable[..., Run]) -> None:
    with closing(socket.create_server((ports.HOST, 0))) as server:
        port = server.getsockname()[1]
        run = up("--port", str(port))
        code, out, err = run.end()
    assert (code, out, err) == (2, "", f"pdx: Port {port} is in use or not allowed; choose another with --port.\n")
    ended = subprocess.run(run._pdx("status", "--json"), capture_output=True, text=True, env=run.env, check=True)
    assert json.loads(ended.stdout) == []


def test_a_second_run_of_the_same_name(up: Callable[..., Run]) -> None:
    first = up()
    assert eventually(lambda: (first.logs / "prefill-0.log").exists())
    code, out, err = up().end()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("pdx: tiny already runs in ")
    first.lines_until("Ctrl-C stops everything")
