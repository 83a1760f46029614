"""Results of transfer probes with simulated engines, as `pdx doctor` and `pdx top` report them."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Verification
from pdx_api.verification import Cause, Verdict
from pdx_cli.main import main
from pdx_proxy.verification import prober, record
from pdx_sim.core.counters import Violation
from pdx_sim.settings import OnLoadFailure
from tests.component.conftest import MakeWorld
from tests.component.harness import World, eventually, spec_of

SIM: dict[str, Any] = {"lease_seconds": 0.5, "on_load_failure": OnLoadFailure.RECOMPUTE}
ON: dict[str, Any] = {"verification": Verification(period_seconds=0.5)}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(record, "_RETRY_SECONDS", 0.2)


async def wait_for(world: World, expected: Verdict) -> None:
    """Wait until the transfer probes have this verdict."""
    transfer_prober = world.gateway.prober
    await eventually(
        lambda: transfer_prober.finding.verdict is expected, 15.0, f"{expected}: {transfer_prober.describe()}"
    )


async def printed(capsys: pytest.CaptureFixture[str], command: str, world: World, *argv: str) -> tuple[int, str]:
    """Exit code and output of a command that inspects the gateway."""
    code = await asyncio.to_thread(main, [command, "--admin", world.admin, *argv])
    return code, capsys.readouterr().out


async def is_reported(capsys: pytest.CaptureFixture[str], world: World, cause: Cause, part: str) -> None:
    """Both commands report the cause."""
    code, out = await printed(capsys, "doctor", world, "--json")
    texts = [f"{each['sentence']} {each['remedy']}" for each in json.loads(out)["findings"] if each["cause"] == cause]
    assert code == 1
    assert any(part in text for text in texts), out
    code, out = await printed(capsys, "top", world, "--once", "--interval", "0.1")
    assert code == 0
    assert "KV DOES NOT MOVE in 1 of 1 pair" in out
    assert f": {cause}: " in out


async def test_a_blocked_side_channel(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim=SIM, **ON)
    world.allowed.expired = True
    await wait_for(world, Verdict.VERIFIED)
    assert (await printed(capsys, "doctor", world))[0] == 0
    code, out = await printed(capsys, "top", world, "--once", "--interval", "0.1")
    assert (code, "KV verified in 1 of 1 pair" in out) == (0, True), out
    await world.p.station.channel.close()
    world.d.station.handshaken.clear()
    await wait_for(world, Verdict.BROKEN)
    await is_reported(capsys, world, Cause.PORTS, "the decode engine has computed a whole prompt by itself")
    await world.p.station.channel.listen("127.0.0.1", world.p.side_channel_port)
    await wait_for(world, Verdict.VERIFIED)
    assert (await printed(capsys, "doctor", world))[0] == 0


async def test_another_model_string(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim=SIM, d={"model": "/models/sim"}, warm=False, **ON)
    world.allowed.expired = True
    await wait_for(world, Verdict.BROKEN)
    await is_reported(capsys, world, Cause.MODEL, "the decode engine has computed a whole prompt by itself")


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
    await wait_for(world, Verdict.BROKEN)
    await is_reported(capsys, world, Cause.NO_CONNECTOR, f"the {missing} engine runs without a KV connector")
