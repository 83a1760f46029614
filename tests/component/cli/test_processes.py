"""Processes that ignore SIGTERM, that leave children behind, and that cannot be started."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdx_cli import interrupts
from pdx_cli.errors import CommandError
from pdx_cli.local.foreground import StopRequest, _supervised
from pdx_cli.local.processes import Child, Processes
from pdx_cli.runs import reaper

DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
"""A program that ignores SIGTERM."""
LEAVES_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DEAF!r}])"
"""A program that ends and leaves a child in its group that ignores SIGTERM."""
LONG = 600.0
"""A grace period longer than any test."""


@pytest.fixture
def short() -> Iterator[Processes]:
    processes = Processes(grace_seconds=0.2)
    yield processes
    processes.close()


@pytest.fixture
def patient() -> Iterator[Processes]:
    processes = Processes(grace_seconds=LONG)
    yield processes
    processes.close()


async def _start(processes: Processes, code: str, tmp_path: Path) -> Child:
    return await processes.start("engine", (sys.executable, "-c", code), os.environ, tmp_path / "engine.log")


async def _ready(child: Child) -> None:
    while "ready" not in child.log.read_text():  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("code", [DEAF, LEAVES_CHILD])
async def test_processes_are_killed_after_the_grace_period(code: str, short: Processes, tmp_path: Path) -> None:
    child = await _start(short, code, tmp_path)
    await _ready(child)
    assert reaper.has_members(child.pid)
    await short.stop()
    assert not reaper.has_members(child.pid)


async def test_the_reaper_ends_what_was_not_stopped(patient: Processes, tmp_path: Path) -> None:
    child = await _start(patient, LEAVES_CHILD, tmp_path)
    await _ready(child)
    await child.process.wait()
    assert reaper.has_members(child.pid)
    patient.close()
    assert not reaper.has_members(child.pid)


@pytest.mark.parametrize("stopped", [True, False])
async def test_the_reaper_reports_what_was_not_stopped(stopped: bool, tmp_path: Path) -> None:
    processes = Processes(tmp_path / "reaper.log", grace_seconds=0.2)
    child = await _start(processes, DEAF, tmp_path)
    await _ready(child)
    if stopped:
        await processes.stop()
    processes.close()
    report = "" if stopped else "`pdx up` ended before 1 of its process groups; ending them\n"
    assert (tmp_path / "reaper.log").read_text() == report
    assert not reaper.has_members(child.pid)


async def test_a_full_disk_does_not_keep_the_reaper_from_its_work(tmp_path: Path) -> None:
    processes = Processes(Path("/dev/full"))
    child = await _start(processes, DEAF, tmp_path)
    await _ready(child)
    processes.close()
    assert not reaper.has_members(child.pid)


async def test_a_second_signal_kills_at_once(patient: Processes, tmp_path: Path) -> None:
    async def work() -> None:
        child = await _start(patient, DEAF, tmp_path)
        await _ready(child)
        loop = asyncio.get_running_loop()
        loop.call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
        loop.call_later(0.3, os.kill, os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    stop = StopRequest()
    supervised = asyncio.ensure_future(_supervised(work(), patient, stop))
    with interrupts.handled(stop.on_signal):
        done, _ = await asyncio.wait([supervised], timeout=LONG / 20)
    assert done
    assert supervised.cancelled()
    assert stop.received is signal.SIGINT
    assert patient.children == []


async def test_a_signal_before_the_start_stops_the_work(patient: Processes) -> None:
    stop = StopRequest()
    stop.on_signal(signal.SIGTERM)
    started: list[bool] = []

    async def work() -> None:
        started.append(True)
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await _supervised(work(), patient, stop)
    assert not started
    assert stop.received is signal.SIGTERM


async def test_a_failure_stops_everything(patient: Processes, tmp_path: Path) -> None:
    pids = []

    async def work() -> None:
        pids.append((await _start(patient, "import time; time.sleep(600)", tmp_path)).pid)
        raise CommandError("Broken.")

    with pytest.raises(CommandError, match=r"Broken\."):
        await _supervised(work(), patient, StopRequest())
    assert not reaper.has_members(pids[0])


async def test_guard_reports_an_exit_with_the_end_of_the_log(short: Processes, tmp_path: Path) -> None:
    await _start(short, "print('one'); print('two'); raise SystemExit(7)", tmp_path)
    with pytest.raises(CommandError) as raised:
        await short.guard(asyncio.Event().wait())
    assert str(raised.value) == f"engine exited with code 7; {tmp_path}/engine.log ends with:"
    assert raised.value.details == ("one", "two")
    await short.stop()


async def test_missing_program(short: Processes, tmp_path: Path) -> None:
    await short.start("engine", ("/nowhere/vllm",), os.environ, tmp_path / "engine.log")
    with pytest.raises(CommandError) as raised:
        await short.guard(asyncio.Event().wait())
    assert raised.value.details == ("/nowhere/vllm cannot be started: No such file or directory",)
    await short.stop()


async def test_restart(short: Processes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lives = "import signal; print('ready', flush=True); signal.pause()"
    held = tmp_path / "held"
    dies = f"{LEAVES_CHILD}; print('dying', flush=True); raise SystemExit(7)"
    code = f"import os\nif os.path.exists({str(held)!r}):\n  {lives}\nelse:\n  open({str(held)!r}, 'w')\n  {dies}"

    async def again() -> Child:
        return await _start(short, code, tmp_path)

    first = await again()
    short.restarts = {"engine": again}
    work = asyncio.ensure_future(short.guard(asyncio.Event().wait()))
    while first in short.children:  # noqa: ASYNC110 - there is no event for a restart
        await asyncio.sleep(0.01)
    (second,) = short.children
    await _ready(second)
    assert not reaper.has_members(first.pid), "its group has ended"
    assert "dying" in second.log.read_text(), "the log continues"
    assert "engine exited with code 7; restarting it in 1 s" in capsys.readouterr().err
    assert not work.done()
    work.cancel()
    await asyncio.wait([work])
    await short.stop()
    assert not reaper.has_members(second.pid)
