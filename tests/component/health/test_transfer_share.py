"""A transfer that stops under load shows in D's counters, and `pdx doctor` reports it."""

import pytest

from pdx_api.names import Order
from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import Finding, examine
from pdx_cli.commands.doctor import inspect
from pdx_cli.inputs.target import Local
from pdx_proxy.health import engine_scraper
from pdx_sim.settings import OnLoadFailure
from tests.component.conftest import MakeWorld
from tests.component.harness import PROMPT, World


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_scraper, "PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(engine_scraper, "SAMPLE_SECONDS", 0.0)


async def serve(world: World, count: int) -> None:
    """Send requests with new prompts, then read the counters of the decode engine."""
    for number in range(count):
        reply = await world.complete(prompt=f"{world.sent} {number} {PROMPT}")
        assert reply.status == 200
    await world.gateway.scraper.scrape_all()


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
