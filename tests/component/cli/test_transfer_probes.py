"""What canaries show of a gateway with simulated engines, as `pdx doctor` and `pdx top` tell it."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Order, Role
from pdx_api.verification import Cause, Verdict
from pdx_cli.main import main
from pdx_proxy.config.settings import Verification
from pdx_proxy.verification import prober as canaries
from pdx_proxy.verification import verdict
from pdx_sim.core.counters import Violation
from pdx_sim.settings import OnLoadFailure
from tests.component.conftest import MakeWorld
from tests.component.harness import World, eventually, spec_of

SIM: dict[str, Any] = {"lease_seconds": 0.5, "on_load_failure": OnLoadFailure.RECOMPUTE}
ON: dict[str, Any] = {"verification": Verification(period_seconds=0.5)}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canaries, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(verdict, "_RETRY_SECONDS", 0.2)


async def shows(world: World, verdict: Verdict) -> None:
    """Wait until canaries have shown that."""
    canary = world.gateway.prober
    await eventually(lambda: canary.finding.verdict is verdict, 15.0, f"{verdict}: {canary.describe()}")


async def printed(capsys: pytest.CaptureFixture[str], command: str, world: World, *argv: str) -> tuple[int, str]:
    """Exit code and output of a command that looks at the gateway."""
    code = await asyncio.to_thread(main, [command, "--admin", world.admin, *argv])
    return code, capsys.readouterr().out


async def is_told(capsys: pytest.CaptureFixture[str], world: World, cause: Cause, words: str) -> None:
    """Both commands name the cause."""
    code, out = await printed(capsys, "doctor", world, "--json")
    told = [f"{each['sentence']} {each['remedy']}" for each in json.loads(out)["findings"] if each["cause"] == cause]
    assert code == 1
    assert any(words in each for each in told), out
    code, out = await printed(capsys, "top", world, "--once", "--interval", "0.1")
    assert code == 0
    assert "KV DOES NOT MOVE between 1 of 1 pairs" in out
    assert f"broken: {cause}" in out


async def test_a_side_channel_that_is_blocked_and_opened(
    make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim=SIM, **ON)
    world.allowed.expired = True
    await shows(world, Verdict.VERIFIED)
    assert (await printed(capsys, "doctor", world))[0] == 0
    code, out = await printed(capsys, "top", world, "--once", "--interval", "0.1")
    assert (code, "KV moves: 1 of 1 pairs verified by canaries" in out) == (0, True), out
    await world.p.station.channel.close()
    world.d.station.known.clear()
    await shows(world, Verdict.BROKEN)
    await is_told(capsys, world, Cause.PORTS, "D has computed a whole prompt by itself")
    await world.p.station.channel.listen("127.0.0.1", world.p.side_channel_port)
    await shows(world, Verdict.VERIFIED)
    assert (await printed(capsys, "doctor", world))[0] == 0


async def test_another_model_string(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim=SIM, d={"model": "/models/sim"}, warm=False, **ON)
    world.allowed.expired = True
    await shows(world, Verdict.BROKEN)
    await is_told(capsys, world, Cause.MODEL, "D has computed a whole prompt by itself")


@pytest.mark.parametrize("missing", [Role.PREFILL, Role.DECODE])
async def test_an_engine_without_its_connector(
    missing: Role, make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = {missing[0]: {"role": Role.AGGREGATED}}
    world = await make_world(Order.PREFILL_FIRST, sim=SIM, **bare, gateway=False)
    world.allowed.violations = {Violation.PARAMS_AT_AGGREGATED}
    world.allowed.expired = True
    pair = ((world.p, Role.PREFILL), (world.d, Role.DECODE))
    specs = tuple(replace(spec_of(engine, world.order), role=role) for engine, role in pair)
    await world.start_gateway(warm=False, endpoints=specs, **ON)
    await shows(world, Verdict.BROKEN)
    await is_told(capsys, world, Cause.NO_CONNECTOR, f"{missing[0].upper()} runs without a KV connector")
