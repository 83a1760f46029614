"""A transfer that stops under load shows in D's counters, and `pdx doctor` reports it."""

import pytest

from pdx_api.names import Order
from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import Finding, examine
from pdx_cli.commands.doctor import inspect
from pdx_cli.inputs.target import Local
from pdx_proxy.health import transfer_share
from pdx_sim.settings import OnLoadFailure
from tests.component.conftest import MakeWorld
from tests.component.harness import PROMPT, World, eventually


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_share, "PAUSE_SECONDS", 3600.0)


async def serve(world: World, count: int) -> None:
    """Send requests with new prompts, then poll the D's."""
    for number in range(count):
        reply = await world.complete(prompt=f"{world.sent} {number} {PROMPT}")
        assert reply.status == 200
    await world.gateway.transfer_share.poll_all()


async def shares(world: World) -> list[str]:
    """Return the shares on the metrics page."""
    page = (await world.call("GET", f"{world.admin}/metrics")).raw.decode()
    name = "pdx_remote_prompt_tokens_ratio{"
    return [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(name)]


async def causes(world: World) -> dict[str, Finding]:
    return {found.cause: found for found in examine(await inspect(Local("world", world.admin)), CHECKS)}


async def test_a_transfer_that_stops_is_seen(make_world: MakeWorld) -> None:
    sim = {"lease_seconds": 0.5, "on_load_failure": OnLoadFailure.RECOMPUTE}
    world = await make_world(Order.PREFILL_FIRST, sim=sim)
    world.allowed.expired = True
    await serve(world, 0)
    assert await shares(world) == [], "there was no prompt between two counts"
    await serve(world, 6)
    assert await shares(world) == ["1.0"]
    assert "KVNotMoving" not in await causes(world)
    await world.p.station.channel.close()
    world.d.station.handshaken.clear()
    for _ in range(4):
        await serve(world, 2)
    assert await shares(world) == ["0.0"]
    assert "In the last half minute 6 requests" in (await causes(world))["KVNotMoving"].sentence
    assert world.d.counts.prompt_tokens_external, "since its start it has received much"


async def test_counts_that_are_too_old_are_forgotten(make_world: MakeWorld) -> None:
    """Otherwise the share of a D that is no longer polled would hide that nothing arrives."""
    world = await make_world(Order.PREFILL_FIRST, 1, 2)
    for _ in range(2):
        await serve(world, 2)
    found, name = world.gateway.transfer_share, world.endpoint(world.d).name
    await world.d.stop()
    await serve(world, 1)
    assert len(found.decode) == 2, "the counts are kept"
    (key,) = [key for key in found._counted_at if key[0] == name]
    found._counted_at[key] -= 5 * transfer_share.PAUSE_SECONDS
    await serve(world, 1)
    assert list(found.decode) == [world.endpoint(world.decode[1]).name]


async def test_engines_that_are_gone_are_forgotten(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, 1, 2)
    for _ in range(2):
        await serve(world, 2)
    assert len(world.gateway.transfer_share.decode) == 2
    await world.d.stop()
    await serve(world, 1)
    assert len(world.gateway.transfer_share.decode) == 2, "the counts are kept"
    gone = world.endpoint(world.d)
    world.gateway.endpoint_manager.update(
        [e.spec for e in world.gateway.registry.snapshot.everything if e.name != gone.name]
    )
    await eventually(lambda: len(world.gateway.registry.snapshot.everything) == 2, what="the D is gone")
    await serve(world, 1)
    assert list(world.gateway.transfer_share.decode) == [world.endpoint(world.decode[1]).name]
