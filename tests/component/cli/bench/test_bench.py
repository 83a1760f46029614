"""`pdx bench` as a user runs it, against a gateway with simulated engines: files, phases, Ctrl-C, errors."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_cli.bench.analysis.phases import TO_FIRST_TOKEN
from pdx_cli.main import main
from tests.component.cli.programs import SECONDS, TEST_SECONDS, Mark
from tests.component.conftest import MakeWorld
from tests.component.harness import World, eventually

pytestmark = pytest.mark.timeout(TEST_SECONDS)
STEPS: dict[str, Any] = {"step_seconds": 0.01, "step_token_seconds": 1e-4}
QUICK = ["--isl", "200", "--osl", "12", "--ttft", "20s", "--tpot", "5s", "--warm-up", "300ms", "--duration", "2s"]


@asynccontextmanager
async def bench(
    *argv: str, env: Mapping[str, str] = os.environ, cwd: Path | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "pdx_cli", "bench", *argv),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**env, "OPENAI_API_KEY": ""},
        cwd=cwd,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    async with asyncio.timeout(SECONDS):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def files_of(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


async def outcomes(world: World) -> int:
    """How many requests the gateway has served: only the program counts what it sends."""
    return sum((await world.state())["outcomes"].values())


@pytest.mark.parametrize("debug", [True, False])
async def test_where_the_time_went(debug: bool, make_world: MakeWorld, tmp_path: Path) -> None:
    """With the phases of each request, or those of the gateway's histograms."""
    world = await make_world(Order.PREFILL_FIRST, p=STEPS, d=STEPS, debug_headers=debug)
    output = tmp_path / "out"
    flags = ["--rate", "10", "--repeats", "1", "--output", str(output)]
    async with bench(world.url, "--admin", world.admin, *QUICK, *flags) as process:
        _, out, err = await ended(process)
    assert "alone: TTFT" in err
    assert "Verdict:" in out
    found = json.loads((output / "result.json").read_text())
    [arm] = found["arms"]
    assert (arm["name"], arm["split"], found["model"]) == ("P:D 1:1", True, "sim")
    [step] = arm["steps"]
    assert step["failures"] == {}
    assert step["good"] == step["count"] > 5
    phases = step["phases"]
    assert phases["prefill"] > 0.02
    assert phases["first_step"] > 0.009
    rel = 0.02 if debug else 0.2  # histograms contain the warm-up, too
    assert sum(phases[phase] for phase in TO_FIRST_TOKEN) == pytest.approx(step["ttft"]["mean"], rel=rel, abs=0.002)
    counters = arm["counters"]
    assert counters["decode"]["external_tokens"] >= 200 * step["count"]
    rows = [json.loads(line) for line in (output / "requests.jsonl").read_text().splitlines()]
    assert {row["prompt_tokens"] for row in rows} == {200}
    assert all(bool(row["timing"]) is debug for row in rows)
    assert json.loads((output / "vllm-P-D-1-1.json").read_text())["completed"] == step["count"]
    assert "<svg" in (output / "report.html").read_text()
    world.sent = await outcomes(world)


async def test_a_password_in_the_url_is_nowhere(make_world: MakeWorld, tmp_path: Path) -> None:
    """Neither the folder that is named after the URL nor a file in it, nor what is printed, contains it."""
    world = await make_world(Order.PREFILL_FIRST, p=STEPS, d=STEPS)
    url = world.url.replace("://", "://someone:s3cret@")
    async with bench(url, "--admin", world.admin, *QUICK, "--rate", "5", "--repeats", "1", cwd=tmp_path) as process:
        _, out, err = await ended(process)
    files = files_of(tmp_path)
    folder = files[0].parent
    assert "report.html" in {path.name for path in files}
    host = world.url.partition("://")[2].replace(".", "-").replace(":", "-")
    assert folder.name.startswith(f"bench-{host}-")
    for page in (out, err, *(str(path) for path in files), *(path.read_text() for path in files)):
        assert "s3cret" not in page
        assert "someone" not in page
    world.sent = await outcomes(world)


async def test_ctrl_c_leaves_what_was_measured(make_world: MakeWorld, tmp_path: Path) -> None:
    world = await make_world(Order.PREFILL_FIRST, p=STEPS, d=STEPS)
    flags = ["--rate", "5", "--repeats", "50", "--output", str(tmp_path / "out")]
    async with bench(world.url, *QUICK, *flags) as process:
        await until(process, b"% of")
        process.send_signal(signal.SIGINT)
        code, out, err = await ended(process)
    assert code == 128 + signal.SIGINT
    assert "Traceback" not in err
    assert "Interrupted: these are the results so far." in out
    assert "Only TTFT and TPOT were measured, no phases" in out
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert found["partial"] is True
    assert len(found["arms"][0]["steps"]) >= 1
    await eventually(lambda: not any(engine.counts.running_now for engine in world.engines))
    world.sent = await outcomes(world)


async def test_ctrl_c_in_the_first_step_leaves_no_files(make_world: MakeWorld, tmp_path: Path) -> None:
    world = await make_world(Order.PREFILL_FIRST, p=STEPS, d=STEPS)
    async with bench(world.url, *QUICK, "--duration", "100s", "--rate", "5", "--output", str(tmp_path / "out")) as one:
        await until(one, b"repeat 1: 5 req/s, 3 steps left")
        one.send_signal(signal.SIGINT)
        code, out, err = await ended(one)
    assert (code, out) == (128 + signal.SIGINT, "")
    assert err == "Interrupted before a step has ended: there are no results.\n"
    assert not os.listdir(tmp_path)
    await eventually(lambda: not any(engine.counts.running_now for engine in world.engines))
    world.sent = await outcomes(world)


async def test_a_mistake_ends_the_program_with_one_sentence(tmp_path: Path) -> None:
    async with bench("http://127.0.0.1:1", "--output", str(tmp_path / "out")) as process:
        code, _, err = await ended(process)
    assert code == 2, err
    assert ":1 did not answer: connection refused; write the URL of an OpenAI-comp" in err
    assert "Traceback" not in err
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (
            ["http://127.0.0.1:1", "--model", "m"],
            "127.0.0.1:1 did not answer: connection refused; write the URL of",
        ),
        (["http://127.0.0.1:1", "--trace", "/nowhere.csv"], "There is no trace /nowhere.csv"),
        (["--report", "/nowhere.json"], "/nowhere.json cannot be read"),
        (["/nowhere.yaml", "--compare"], "/nowhere.yaml"),
    ],
)
def test_mistakes_are_one_sentence(
    argv: list[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """These run in the test's own process."""
    monkeypatch.setenv("OPENAI_API_KEY", "")
    output = ["--output", str(tmp_path / "out")] if "--report" not in argv else []
    code = main(["bench", *argv, *output])
    err = capsys.readouterr().err
    assert code == 2, err
    assert part in err
    assert "Traceback" not in err
    assert not os.listdir(tmp_path)


COMPARE = [
    *("--engine", "sim", "--compare", "--chunks", "512", "--ratios", "1:1", "--rate", "20", "--repeats", "1"),
    *("--isl", "20", "--osl", "2", "--ttft", "20s", "--tpot", "5s", "--warm-up", "100ms"),
]


async def until(process: asyncio.subprocess.Process, part: bytes) -> None:
    """Read the process's messages up to one."""
    assert process.stderr is not None
    async with asyncio.timeout(SECONDS):
        while part not in (line := await process.stderr.readline()):
            assert line, "it has ended"


@dataclass(frozen=True, slots=True)
class Machine:
    """Where comparisons leave things: run directories, temporary directories, processes."""

    path: Path
    mark: Mark

    @property
    def env(self) -> dict[str, str]:
        return {**self.mark.env, "TMPDIR": str(self.path / "tmp")}

    def argv(self, *flags: str) -> list[str]:
        return [str(self.path / "mine.yaml"), "--run-dir", str(self.path / "run"), *COMPARE, *flags]

    def left(self, folder: str) -> list[str]:
        return sorted(each.name for each in (self.path / folder).iterdir())


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    spec = {"model": {"name": "m"}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}}
    body = {"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": {"name": "mine"}, "spec": spec}
    (tmp_path / "mine.yaml").write_text(json.dumps(body))
    for folder in ("tmp", "run"):
        (tmp_path / folder).mkdir()
    found = Machine(tmp_path, Mark())
    yield found
    found.mark.end()


async def test_the_next_comparison_removes_what_a_killed_one_left(machine: Machine) -> None:
    async with bench(*machine.argv("--duration", "100s", "--output", str(machine.path / "a")), env=machine.env) as one:
        await until(one, b"20 req/s")
        one.kill()
        await one.wait()
    assert machine.left("run") == ["mine-bench-a512"]
    assert len(machine.left("tmp")) == 1, "the directory of the engines' sockets"
    flags = ["--duration", "300ms", "--output", str(machine.path / "b")]
    async with bench(*machine.argv(*flags), env=machine.env) as two:
        code, out, err = await ended(two)
    assert "Removed mine-bench-a512, which an earlier run left." in err
    arms = json.loads((machine.path / "b" / "result.json").read_text())["arms"]
    assert [(arm["name"], arm["problem"]) for arm in arms] == [("aggregated 2, chunks of 512", ""), ("P:D 1:1", "")]
    assert all(step["good"] == step["count"] > 0 for arm in arms for step in arm["steps"])
    # On a busy machine the generator is late, and marks what it has measured.
    assert code == (0 if all(arm["valid"] for arm in arms) else 1), out + err
    assert machine.left("run") == machine.left("tmp") == []
    await eventually(lambda: not machine.mark.pids(), SECONDS)


async def test_arms_that_cannot_start(machine: Machine) -> None:
    flags = ["--sim-flags=--nonsense", "--output", str(machine.path / "out")]
    async with bench(*machine.argv("--duration", "1s", *flags), env=machine.env) as process:
        code, _, err = await ended(process)
    assert code == 1
    assert err.count("\n    pdx sim: --nonsense does not exist;") == 2, "the end of the log"
    assert err.endswith("\nNo arm could be measured, so there are no results.\n")
    assert machine.left("run") == ["mine-bench-a512", "mine-bench-p1d1"], "the logs that are named"
    assert not os.listdir(machine.path / "tmp")
    assert not (machine.path / "out").exists()


async def test_an_interrupted_comparison_leaves_nothing(machine: Machine) -> None:
    flags = ["--duration", "100s", "--output", str(machine.path / "out")]
    async with bench(*machine.argv(*flags), env=machine.env) as process:
        await until(process, b"healthy")
        process.send_signal(signal.SIGINT)
        code, _, err = await ended(process)
    assert code == 128 + signal.SIGINT
    assert "Traceback" not in err
    assert sorted(each.name for each in machine.path.iterdir()) == ["mine.yaml", "run", "tmp"]
    assert machine.left("run") == machine.left("tmp") == []
    assert not machine.mark.pids()
