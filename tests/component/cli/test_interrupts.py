"""An interrupt at any moment of any command: no traceback, no process and no temporary directory is left."""

import os
import pty
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from pdx_cli.local import ports
from pdx_cli.main import COMMANDS
from tests.component.cli.programs import SECONDS, TEST_SECONDS, Mark, eventually

TINY: Final = str(Path(__file__).parents[3] / "examples" / "tiny-cpu.yaml")
CONTRACT: Final = Path(__file__).parents[2] / "contracts" / "0.32.json"
MOMENTS: Final = (0.0, 0.1, 0.25, 0.6, 1.2)
"""Seconds after the start."""
FIRST_SECONDS: Final = tuple(number / 10 for number in range(40))
"""Forty moments in the first four seconds."""


def argv_of(command: str, directory: Path, silent: int) -> list[str]:
    """A command line that runs for long, if the command can; `silent` is a port that accepts and never answers."""
    free = [str(port) for port in ports.allocate(4)]
    return {
        "up": ["up", TINY, "--engine", "sim", "--port", free[0], "--run-dir", str(directory / "run")],
        "top": ["top", "--admin", f"http://127.0.0.1:{silent}"],
        "doctor": ["doctor", "--admin", f"http://127.0.0.1:{silent}"],
        "bench": ["bench", f"http://127.0.0.1:{silent}", "--model", "m"],
        "render": ["render", TINY],
        "status": ["status", "--run-dir", str(directory)],
        "gateway": [
            *("gateway", "--listen", f"127.0.0.1:{free[0]}", "--admin", f"127.0.0.1:{free[1]}"),
            *("--aggregated", f"http://127.0.0.1:{free[2]}"),
        ],
        "sim": ["sim", "--role", "both", "--listen", f"127.0.0.1:{free[0]}", "--side-channel", f"127.0.0.1:{free[1]}"],
        "tiny-model": ["tiny-model", str(directory / "model")],
        "completion": ["completion", "bash"],
        "probe": ["probe", "--prefill", f"http://127.0.0.1:{silent}", "--decode", f"http://127.0.0.1:{silent}"],
        "check-vllm": ["check-vllm", str(CONTRACT)],
        "version": ["version"],
    }[command]


def block_interrupts() -> None:
    """Keep a signal pending until PDX's first line: before it, Python's own start prints a traceback."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))


@contextmanager
def terminal() -> Iterator[int]:
    """A terminal, whose modes must be the same at the end."""
    ours, theirs = pty.openpty()
    try:
        modes = termios.tcgetattr(theirs)
        yield theirs
        assert termios.tcgetattr(theirs) == modes
    finally:
        os.close(ours)
        os.close(theirs)


def interrupt(argv: Sequence[str], moment: float, directory: Path) -> tuple[int, str]:
    """The exit code and stderr of a command that receives SIGINT at that moment; nothing may be left of it."""
    mark = Mark()
    temporary = directory / "tmp"
    temporary.mkdir()
    env = {**mark.env, "TMPDIR": str(temporary), "XDG_STATE_HOME": str(directory), "TERM": "xterm"}
    with terminal() as screen:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pdx_cli", *argv],
            stdout=screen if argv[0] == "top" else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=screen if argv[0] == "top" else subprocess.DEVNULL,
            text=True,
            env=env,
            preexec_fn=block_interrupts,
        )
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=SECONDS)
            assert eventually(lambda: not mark.pids())
        finally:
            mark.end()
            process.communicate()
    assert not list(temporary.iterdir())
    assert not list(directory.glob(".model*"))
    return process.returncode, err


def check(command: str, moments: Sequence[float], tmp_path: Path) -> None:
    """Interrupt the command at each of the moments after its start."""
    with closing(socket.create_server((ports.HOST, 0), backlog=1000)) as server:
        for number, moment in enumerate(moments):
            directory = tmp_path / str(number)
            directory.mkdir()
            code, err = interrupt(argv_of(command, directory, server.getsockname()[1]), moment, directory)
            assert "Traceback" not in err, err
            assert "Exception ignored" not in err, err
            assert code in (0, 1, 2, 130, -signal.SIGINT), f"{code} at {moment} s: {err}"


@pytest.mark.timeout(TEST_SECONDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_prints_no_traceback(command: str, tmp_path: Path) -> None:
    check(command, MOMENTS, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("command", COMMANDS)
def test_no_interrupt_in_the_first_seconds_prints_a_traceback(command: str, tmp_path: Path) -> None:
    check(command, FIRST_SECONDS, tmp_path)
