"""`pdx top` in a terminal (a pty with a terminal emulator), in a pipe, and with TERM=dumb."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pyte
import pytest

from pdx_api.names import Order
from tests.component.cli.programs import SECONDS, TEST_SECONDS
from tests.component.cli.test_doctor import pdx
from tests.component.conftest import MakeWorld
from tests.component.harness import World

pytestmark = pytest.mark.timeout(TEST_SECONDS)
SIZES = [(80, 24), (120, 40), (50, 12)]


class Emulated:
    """`pdx top` in a terminal emulator."""

    def __init__(self, columns: int, lines: int, *argv: str, term: str = "xterm-256color") -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.fd, terminal = pty.openpty()
        os.set_blocking(self.fd, False)
        self.resize(columns, lines)
        self.modes = termios.tcgetattr(terminal)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pdx_cli", "top", *argv],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            # The variables of a size do not follow the terminal's own.
            env={**os.environ, "TERM": term, "LANG": "C.UTF-8", "COLUMNS": "77", "LINES": "17"},
            start_new_session=True,
        )
        self._terminal = terminal

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the terminal."""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self.fd, keys)

    async def until(self, condition: Callable[[str], bool]) -> str:
        """Return the screen as soon as a complete one fulfils the condition."""
        async with asyncio.timeout(SECONDS):
            while not (self._is_complete and condition(self.text)):
                try:
                    data = os.read(self.fd, 65536)
                except BlockingIOError:
                    assert self.process.poll() is None, self.text
                    await asyncio.sleep(0.02)
                    continue
                self.raw += data
                self._stream.feed(data)
        return self.text

    @property
    def _is_complete(self) -> bool:
        """Whether the last synchronized update has ended; a plain output has none."""
        return self.raw.rfind(b"\x1b[?2026h") <= self.raw.rfind(b"\x1b[?2026l")

    @property
    def text(self) -> str:
        """What the screen shows."""
        return "\n".join(row.rstrip() for row in self.screen.display)

    async def end(self) -> int:
        """Return the exit code, after the process has ended by itself."""
        await asyncio.to_thread(self.process.wait, SECONDS)
        with_rest = b""
        try:
            while data := os.read(self.fd, 65536):
                with_rest += data
        except OSError:
            pass
        self.raw += with_rest
        assert self.process.returncode is not None
        return self.process.returncode

    def is_restored(self) -> bool:
        """Whether the terminal has its modes again, and its normal screen."""
        return termios.tcgetattr(self._terminal) == self.modes and self.raw.rstrip().endswith(b"\x1b[?1049l")

    def close(self) -> None:
        """End the process and close the terminal."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.fd)
        os.close(self._terminal)


@asynccontextmanager
async def emulated(
    columns: int, lines: int, world: World, *argv: str, term: str = "xterm-256color"
) -> AsyncIterator[Emulated]:
    terminal = Emulated(columns, lines, "--admin", world.admin, "--interval", "0.3", *argv, term=term)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize(("columns", "lines"), SIZES)
async def test_a_killed_engine_is_at_the_top(columns: int, lines: int, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, 3, 3)
    await world.complete()
    async with emulated(columns, lines, world) as top:
        shown = await top.until(lambda text: "ENGINE" in text and "OK" in text)
        assert shown.splitlines()[-1].startswith(" q quit  ? help  ")
        victim = world.endpoint(world.d).name
        await world.d.stop()
        shown = await top.until(lambda text: "DEGRADED" in text and victim in text)
        assert victim in "\n".join(shown.splitlines()[:4])
        assert all(len(row) <= columns for row in shown.splitlines())
        assert len(top.screen.display) == lines
        top.press(b"q")
        assert await top.end() == 0
        assert top.is_restored()
    await settled(world)


async def test_keys_and_resizing(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, 3, 3)
    async with emulated(80, 14, world) as top:
        await top.until(lambda text: "sort: state" in text and "lines 1-" in text)
        top.press(b"s")
        await top.until(lambda text: "sort: name" in text)
        top.press(b"\x1b[F")
        shown = await top.until(lambda text: "OUTCOME" in text)
        assert "ENGINE" in shown, "the names of the columns stay"
        top.press(b"?")
        await top.until(lambda text: "any key: back" in text and "vllm:kv_cache_usage_perc" not in text[:80])
        top.press(b"x")
        await top.until(lambda text: "sort: name" in text)
        top.resize(100, 40)
        await top.until(lambda text: "PHASE" in text and "REASON" in text and "lines" not in text.splitlines()[-1])
        top.press(b"q")
        assert await top.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_restores_the_terminal(number: signal.Signals, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    async with emulated(80, 24, world) as top:
        await top.until(lambda text: "ENGINE" in text)
        top.process.send_signal(number)
        assert await top.end() == 0
        assert top.is_restored()
        assert b"Traceback" not in top.raw


async def test_a_dumb_terminal_and_no_colours(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    async with emulated(80, 60, world, term="dumb") as top:
        await top.until(lambda text: text.count("ENGINE") >= 2)
        assert b"\x1b" not in top.raw
    monkeypatch.setenv("NO_COLOR", "1")
    async with emulated(80, 24, world) as top:
        await top.until(lambda text: "ENGINE" in text)
        assert b"\x1b[31m" not in top.raw
        assert b"\x1b[32m" not in top.raw


async def test_a_pipe_gets_one_update_after_another(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "pdx_cli", "top", "--admin", world.admin, "--interval", "0.2"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    seen = 0
    try:
        async with asyncio.timeout(SECONDS):
            while seen < 3:
                line = (await process.stdout.readline()).decode()
                assert line, "it ended"
                assert "\x1b" not in line
                seen += line.startswith("ENGINE")
            process.send_signal(signal.SIGINT)
            _, err = await process.communicate()
    finally:
        with suppress(ProcessLookupError):  # it has ended, unless the test has failed
            process.kill()
    assert (process.returncode, err) == (-signal.SIGINT, b"")


async def test_json(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, 1, 2)
    await world.complete()
    code, out, err = await pdx("top", "--admin", world.admin, "--once", "--interval", "0.1", "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["gateways"] == {"ready": 1, "total": 1}
    assert report["requests"]["split"]["total"] >= 1
    assert {e["name"]: e["healthy"] for e in report["engines"]} == {
        world.endpoint(engine).name: True for engine in world.engines
    }
    assert all(e["load"]["kv_usage"] is not None for e in report["engines"])


async def settled(world: World) -> None:
    """End the gateway, which repeats its warm-up, before the engines are checked."""
    assert world.control is not None
    await world.control.stop()
    world.control = None
