"""An interrupt at any moment of any command: no traceback, no process and no temporary directory is left."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from pdx_cli.local import ports
from pdx_cli.main import COMMANDS

TINY = str(Path(__file__).parents[3] / "examples" / "tiny-cpu.yaml")
MARK = "PDX_TEST_RUN"
MOMENTS = (0.0, 0.1, 0.3, 0.8, 1.6)
"""Seconds after the start."""
SECONDS = 40.0


def argv_of(command: str, directory: Path) -> list[str]:
    """A command line that runs for long, if the command can."""
    free = [str(port) for port in ports.allocate(4)]
    return {
        "up": ["up", TINY, "--engine", "sim", "--port", free[0], "--run-dir", str(directory / "run")],
        "top": ["top", "--admin", f"http://127.0.0.1:{free[0]}"],
        "doctor": ["doctor", "--admin", f"http://127.0.0.1:{free[0]}"],
        "render": ["render", TINY],
        "status": ["status", "--run-dir", str(directory)],
        "gateway": [
            *("gateway", "--listen", f"127.0.0.1:{free[0]}", "--admin", f"127.0.0.1:{free[1]}"),
            *("--aggregated", f"http://127.0.0.1:{free[2]}"),
        ],
        "sim": ["sim", "--role", "both", "--listen", f"127.0.0.1:{free[0]}", "--side-channel", f"127.0.0.1:{free[1]}"],
        "tiny-model": ["tiny-model", str(directory / "model")],
        "completion": ["completion", "bash"],
    }[command]


def block_interrupts() -> None:
    """Keep a signal pending until PDX's first line: before it, Python's own start prints a traceback."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))


def left(mark: str) -> list[int]:
    """The processes with the mark in their environment that are no zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def interrupt(command: str, moment: float, directory: Path) -> tuple[int, str]:
    """The exit code and stderr of a command that receives SIGINT at that moment; nothing may be left of it."""
    mark = f"{MARK}={uuid.uuid4().hex}"
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    env = {**os.environ, MARK: mark.partition("=")[2], "TMPDIR": str(temporary), "XDG_STATE_HOME": str(directory)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "pdx_cli", *argv_of(command, directory)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=env,
        preexec_fn=block_interrupts,
    )
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    deadline = time.monotonic() + SECONDS
    while (running := left(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running
    assert not list(temporary.iterdir())
    assert not list(directory.glob(".model*"))
    return process.returncode, err


@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_prints_no_traceback(command: str, tmp_path: Path) -> None:
    for number, moment in enumerate(MOMENTS):
        directory = tmp_path / str(number)
        directory.mkdir()
        code, err = interrupt(command, moment, directory)
        assert "Traceback" not in err, err
        assert "Exception ignored" not in err, err
        assert code in (0, 1, 2, 130, -signal.SIGINT), f"{code} at {moment} s: {err}"
