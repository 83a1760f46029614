"""The engines' own load, from their metrics pages to the selection."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from pdx_api.names import Order, Policy, Role
from pdx_api.settings.gateway import Choosing
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.health import engine_scraper
from pdx_sim import SimEngine
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually

STREAM = Shape(stream=True)


@pytest.fixture(autouse=True)
def _in_short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_scraper, "PAUSE_SECONDS", 0.05)


def reports_of_worker(world: World) -> LoadReports:
    """Return the reports that the worker has."""
    return world.worker._serving.load_reports


def report_of(world: World, engine: SimEngine) -> LoadReport | None:
    return reports_of_worker(world).engines.get(world.endpoint(engine).name)


def present(world: World, engine: SimEngine) -> LoadReport | None:
    """A report without what the engine has decoded since its start."""
    found = report_of(world, engine)
    return found and replace(found, decode_seconds=0.0, decode_tokens=0.0, answer_tokens=0.0)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_an_engine_that_others_keep_busy_is_avoided(make_world: MakeWorld, role: Role) -> None:
    prefill = role is Role.PREFILL
    by_load = Choosing(prefill_policy=Policy.LEAST_LOAD) if prefill else Choosing(decode_policy=Policy.LEAST_LOAD)
    slow = {"decode_token_seconds": 5e-3}
    world = await make_world(Order.PREFILL_FIRST, 2, 2, sim=slow, choosing=by_load, debug_headers=True)
    busy = world.p if prefill else world.d
    foreign = [asyncio.create_task(world.direct(busy, STREAM, prompt=f"{n} a b", tokens=200)) for n in range(3)]
    await eventually(lambda: (found := report_of(world, busy)) and found.running + found.waiting == 3, what="reported")
    replies = await asyncio.gather(*(world.complete(prompt=f"{n}?", tokens=2) for n in range(2)))
    called = Counter(reply.headers[f"x-pdx-{role}"] for reply in replies)
    assert (called.total(), called[world.endpoint(busy).name]) == (2, 0)
    await asyncio.gather(*foreign)


async def test_reports_of_idle_engines_are_not_published(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, choosing=Choosing(decode_policy=Policy.LEAST_LOAD))
    settings = world.d.settings
    idle = LoadReport(0, 0, 0.0, cache_tokens=settings.num_blocks * settings.block_size, cache_hits=0.0)
    await eventually(lambda: present(world, world.d) == present(world, world.p) == idle)
    await eventually(lambda: not any(limit.rate for limit in reports_of_worker(world).limits.values()))
    before, snapshot = reports_of_worker(world), world.worker._engines.snapshot
    for _ in range(3):
        await world.gateway.scraper.scrape_all()
    assert world.gateway.loads.reports is before
    assert world.worker._engines.snapshot is snapshot


async def test_an_engine_without_a_report_is_selected(make_world: MakeWorld) -> None:
    world = await make_world(
        *(Order.PREFILL_FIRST, 1, 2), choosing=Choosing(decode_policy=Policy.LEAST_LOAD), debug_headers=True
    )
    silent = world.endpoint(world.d).name
    await eventually(lambda: len(reports_of_worker(world).engines) == 3)
    others = {name: each for name, each in reports_of_worker(world).engines.items() if name != silent}
    await world.gateway.scraper.stop()
    world.gateway.loads.reports = LoadReports(others)
    world.gateway._publish_load()
    assert reports_of_worker(world).engines == others
    called = Counter([(await world.complete()).headers["x-pdx-decode"] for _ in range(6)])
    assert called[silent] == 3
