"""`pdx doctor` and `pdx top` on a gateway with simulated engines, healthy and broken."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pdx_api.names import Order, Role
from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import Finding, Severity, examine
from pdx_cli.commands.doctor import inspect
from pdx_cli.inputs.target import Local
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_sim import SimEngine
from pdx_sim.settings import OnLoadFailure
from tests.component.cli.programs import SECONDS, TEST_SECONDS, eventually
from tests.component.cli.test_up import Run
from tests.component.conftest import MakeWorld
from tests.component.harness import FAST, PROMPT, World

pytestmark = pytest.mark.timeout(TEST_SECONDS)


async def pdx(*argv: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pdx_cli", *argv),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        with suppress(ProcessLookupError):  # it has ended, unless the limit has passed
            process.kill()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def rows(out: str) -> dict[str, list[str]]:
    """The cells of each row, by its first cell; of several such rows the first."""
    cells = [line.split() for line in out.splitlines() if line.strip()]
    return {row[0]: row for row in reversed(cells)}


async def findings(world: World) -> dict[str, Finding]:
    """The findings of the doctor, by cause."""
    observation = await inspect(Local("world", world.admin))
    return {finding.cause: finding for finding in examine(observation, CHECKS)}


async def wait_for(world: World, cause: str) -> Finding:
    """The finding of that cause, as soon as there is one."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = await findings(world)
            if cause in found:
                return found[cause]


async def test_a_healthy_gateway_gives_no_finding(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, 1, 2)
    for number in range(6):
        await world.complete(prompt=f"{number} {PROMPT}")
    code, out, err = await pdx("doctor", "--admin", world.admin)
    assert (code, err) == (0, "")
    assert "nothing is wrong." in out.splitlines()[0]
    assert "Inspected 1 gateway and 3 engines." in out


async def test_top_once_shows_what_happens(make_world: MakeWorld) -> None:
    world = await make_world(Order.CONCURRENT, 1, 2)
    for number in range(4):
        await world.complete(prompt=f"{number} {PROMPT}")
    shown = asyncio.create_task(pdx("top", "--admin", world.admin, "--once", "--interval", "3"))
    while not shown.done():
        await world.complete()
        await asyncio.sleep(0.02)
    code, out, err = shown.result()
    assert (code, err) == (0, "")
    lines = rows(out)
    assert "Disaggregated NIXL Concurrent" in out
    assert "1 of 1 gateway ready" in out
    assert float(lines["split"][1]) > 0, "a rate"
    assert int(lines["split"][2]) >= 4
    assert lines["total"][2] != "-", "percentiles of what happened between the samples"
    for engine in world.engines:
        row = lines[world.endpoint(engine).name]
        assert row[1:3] == [engine.settings.role, "Warm"]
        assert row[5].endswith("%"), "the share of KV blocks in use"
    shares = [lines[world.endpoint(engine).name][-1] for engine in world.decode]
    assert any(share.endswith("%") for share in shares), "the share of remote tokens, at a D with requests"


async def test_a_side_channel_that_does_not_answer(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    await world.p.station.channel.close()
    await world.start_gateway(warm=False)
    finding = await wait_for(world, "HandoffFails")
    assert world.endpoint(world.p).name in finding.sentence
    assert world.endpoint(world.d).name in finding.sentence
    assert "5600" in finding.remedy
    code, out, _ = await pdx("doctor", "--admin", world.admin, "--json")
    assert code == 1
    assert json.loads(out)["findings"][0]["cause"] == "HandoffFails"
    await _settle(world)


async def test_a_decode_that_computes_again(make_world: MakeWorld) -> None:
    recomputes = {"on_load_failure": OnLoadFailure.RECOMPUTE}
    world = await make_world(Order.PREFILL_FIRST, d=recomputes, gateway=False)
    await world.p.station.channel.close()
    await world.start_gateway()
    for number in range(6):
        reply = await world.complete(prompt=f"{number} {PROMPT}")
        assert reply.status == 200
    found = await findings(world)
    assert "came through the connector" in found["KVNotMoving"].sentence
    await _settle(world)


async def test_a_decode_of_another_model(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, d={"model": "/models/sim"}, gateway=False)
    await world.start_gateway(warm=False)
    await wait_for(world, "HandoffFails")
    finding = (await findings(world))["ModelsDiffer"]
    assert "'sim'" in finding.sentence
    assert "'/models/sim'" in finding.sentence
    await _settle(world)


async def test_a_prefill_without_its_connector(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    bare = SimEngine(replace(FAST, role=Role.AGGREGATED))
    await bare.start()
    try:
        engines = ((bare, Role.PREFILL), (world.d, Role.DECODE))
        specs = tuple(EndpointSpec(Address(e.settings.host, e.port), role) for e, role in engines)
        await world.start_gateway(warm=False, endpoints=specs)
        finding = await wait_for(world, "ConnectorOff")
        assert f"prefill engine {bare.settings.host}:{bare.port}" in finding.sentence
    finally:
        await _settle(world)
        await bare.stop()


async def test_an_engine_that_is_gone(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    await world.d.stop()
    await world.complete()
    finding = await wait_for(world, "EngineUnhealthy")
    assert f"{world.endpoint(world.d).name} is not healthy: " in finding.sentence
    assert finding.sentence.endswith("did not answer: connection refused"), finding.sentence
    found = await findings(world)
    assert [each.cause for each in found.values() if each.severity is Severity.WRONG] == ["EngineUnhealthy"]
    assert "pod" not in f"{finding.sentence} {finding.remedy}"
    await _settle(world)


async def test_an_engine_of_another_order(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, p={"order": Order.CONCURRENT}, gateway=False)
    await world.start_gateway(warm=False)
    finding = await wait_for(world, "HandoffFails")
    assert "was not started for NIXL with order PrefillFirst" in finding.remedy, finding
    assert "pod" not in finding.remedy
    await _settle(world)


async def test_a_run_that_starts_is_no_alarm(tmp_path: Path) -> None:
    run = Run(tmp_path, "--set", "spec.prefill.replicas=2")
    try:
        assert await asyncio.to_thread(eventually, (run.logs.parent / "state.json").exists)
        os.kill(run.process.pid, signal.SIGSTOP)  # it stays in its start
        code, out, _ = await pdx("doctor", "--json", env=run.env)
        (finding,) = json.loads(out)["findings"]
        assert (code, finding["severity"], finding["cause"]) == (1, "wait", "Starting")
        assert "of 3 engines" in finding["sentence"]
    finally:
        os.kill(run.process.pid, signal.SIGCONT)
        run.process.kill()
        run.process.communicate()
        for pid in run.marked():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def _settle(world: World) -> None:
    """End the gateway, which repeats its warm-up, before the engines are checked."""
    assert world.control is not None
    await world.control.stop()
    world.control = None


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Run]:
    """A `pdx up` that serves."""
    run = Run(tmp_path)
    try:
        run.lines_until("Ctrl-C stops everything")
        yield run
    finally:
        run.process.kill()
        run.process.communicate()
        for pid in run.marked():
            with suppress(ProcessLookupError):  # it may just have ended
                os.kill(pid, signal.SIGKILL)


async def test_what_pdx_up_runs(up: Run) -> None:
    code, out, err = await pdx("doctor", env=up.env)
    assert (code, err, out.splitlines()[0]) == (0, "", "tiny (this machine): nothing is wrong."), out
    code, out, err = await pdx("top", "tiny", "--once", "--interval", "0.1", env=up.env)
    assert (code, err) == (0, "")
    lines = rows(out)
    assert (lines["prefill-0"][1], lines["decode-0"][1]) == ("prefill", "decode")
    assert lines["split"][-1] == "1", "the proof"
