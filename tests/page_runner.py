"""Runs the commands of a page as a reader types them, in a fresh copy of the checkout, and compares what they print."""

import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.component.cli.programs import Mark as ProcessMark
from tests.documents import ROOT, tracked
from tests.pages import Block, Mark, blocks, is_shown

_NEW_NETWORK: Final = 0x40000000
"""CLONE_NEWNET of sched.h."""
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1
_KILLED: Final = re.compile(r"^\S+: (?:line \d+: *)?\d+ Killed .*\n", re.MULTILINE)
"""What bash prints about a job that was killed, at any later moment."""
_STARTER: Final = """import os, signal, sys
os.setsid()
with open(sys.argv[2], "w") as file:
    file.write(f"{os.getpid()}\\n")
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp("bash", ["bash", sys.argv[1]])
"""
"""Python code that starts a script as a terminal's foreground job: a group of its own that Ctrl-C reaches."""


def fresh_copy(folder: Path) -> Path:
    """Copy the checkout's files, with the environment that is installed already."""
    for path in tracked():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target)
    environment = folder / ".venv"
    environment.mkdir()
    for each in (ROOT / ".venv").iterdir():
        if not each.name.startswith(".installed"):
            (environment / each.name).symlink_to(each)
    (environment / ".installed").touch()
    if (uv := ROOT / ".cache" / "uv").is_dir():  # make's own
        (folder / ".cache").mkdir()
        (folder / ".cache" / "uv").symlink_to(uv)
    return folder


def _isolate() -> None:
    """Give the process a loopback of its own where the system permits it, so that a page's ports are free."""
    if ctypes.CDLL(None).unshare(_NEW_NETWORK) != 0:
        return
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def _kill_session(session: int) -> None:
    """Kill what is left of a session. vLLM's engine core overwrites its environment with its title, and so its mark."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[3]) == session:
                os.kill(int(path.parent.name), signal.SIGKILL)


class Reader:
    """A reader with a terminal, and a second one for what runs in the foreground."""

    def __init__(self, checkout: Path, scratch: Path, seconds: float, *, isolated: bool = True) -> None:
        self._scratch, self._seconds = scratch, seconds
        self._count = 0
        self._mark = ProcessMark()
        self._foreground: tuple[int, Path] | None = None
        env = {**self._mark.env, "XDG_STATE_HOME": str(scratch / "state"), "TERM": "dumb"}
        env["PATH"] = os.pathsep.join(each for each in env["PATH"].split(os.pathsep) if not each.startswith(str(ROOT)))
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=checkout,
            env=env,
            text=True,
            start_new_session=True,
            preexec_fn=_isolate if isolated else None,
        )

    def follow(self, page: Path) -> None:
        """Run every block of a page that runs here. Raises AssertionError for an output that the page does not show."""
        for block in blocks(page):
            if Mark.CTRL_C in block.marks:
                self._press_ctrl_c(block)
            elif Mark.FOREGROUND in block.marks:
                self._start(block)
            elif block.runs_here:
                self._type(block)

    def close(self) -> None:
        """End every process that the commands have started."""
        self._mark.end()
        if self._foreground is not None:
            _kill_session(self._foreground[0])
        self._bash.wait()
        assert self._bash.stdin is not None
        self._bash.stdin.close()

    def _type(self, block: Block) -> None:
        end = time.monotonic() + self._seconds
        while True:
            code, printed = self._run(block.commands, end)
            right = code == block.code and (not block.output or is_shown(block.output, printed))
            if right or Mark.REPEAT not in block.marks or time.monotonic() > end:
                break
            time.sleep(0.5)
        assert right, f"{block}: exit code {code}, and it printed:\n{printed}\nThe page shows:\n{block.output}"

    def _script(self, commands: str) -> tuple[Path, Path]:
        self._count += 1
        script = self._scratch / f"{self._count}.sh"
        script.write_text(commands)
        return script, script.with_suffix(".out")

    def _send(self, line: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(line + "\n")
        self._bash.stdin.flush()

    def _run(self, commands: str, end: float) -> tuple[int, str]:
        script, out = self._script(commands)
        done = script.with_suffix(".code")
        self._send(f"{{ . {script}; }} < /dev/null > {out} 2>&1; echo $? > {done}.new; mv {done}.new {done}")
        while not done.is_file():
            assert time.monotonic() < end + self._seconds, f"does not end: {commands}\n{out.read_text()}"
            time.sleep(0.05)
        return int(done.read_text()), _KILLED.sub("", out.read_text())

    def _start(self, block: Block) -> None:
        script, out = self._script(block.commands)
        pid, ended, starter = (script.with_suffix(suffix) for suffix in (".pid", ".code", ".py"))
        starter.write_text(_STARTER)
        program = f"{sys.executable} {starter} {script} {pid}"
        self._send(f"{{ {program} < /dev/null > {out} 2>&1; echo $? > {ended}; }} &")
        end = time.monotonic() + self._seconds
        while not (out.is_file() and is_shown(block.output, out.read_text(), within=True)):
            waits = time.monotonic() < end and not ended.is_file()
            assert waits, f"{block}: it printed:\n{out.read_text()}\nThe page shows:\n{block.output}"
            time.sleep(0.2)
        self._foreground = int(pid.read_text()), out

    def _press_ctrl_c(self, block: Block) -> None:
        assert self._foreground is not None, f"{block}: nothing runs in the foreground"
        group, out = self._foreground
        before = len(out.read_text())
        os.killpg(group, signal.SIGINT)
        end = time.monotonic() + self._seconds
        with suppress(ProcessLookupError):
            while True:
                os.killpg(group, 0)
                assert time.monotonic() < end, f"{block}: it goes on after Ctrl-C"
                time.sleep(0.05)
        printed = out.read_text()[before:]
        assert is_shown(block.output, printed, within=True), f"{block}: it printed:\n{printed}"
        self._foreground = None
