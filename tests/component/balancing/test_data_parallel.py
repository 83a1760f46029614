"""A P with data-parallel ranks: in push orders each leg reaches the rank that D expects."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Order, Role
from pdx_api.settings.gateway import OutlierDetection
from pdx_cli.commands.gateway import add_arguments, settings_of
from pdx_cli.errors import CommandError
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import by_rank
from pdx_sim import FaultKind
from tests.component.balancing.data_parallel import DataParallel
from tests.component.conftest import MakeWorld
from tests.component.harness import SHORT, Shape, World, eventually, spec_of

Ranked = Callable[..., Coroutine[Any, Any, tuple[World, DataParallel]]]


@pytest.fixture
async def ranked(make_world: MakeWorld) -> AsyncIterator[Ranked]:
    """Two ranks of P behind one port, and one D."""
    ports: list[DataParallel] = []

    async def make(order: Order, ranks: int = 2, **more: Any) -> tuple[World, DataParallel]:
        world = await make_world(order, 2, 1, gateway=False, **more.pop("engines", {}))
        port = DataParallel(world.prefill)
        ports.append(port)
        prefill = EndpointSpec(await port.start(), Role.PREFILL, order=order, ranks=ranks)
        specs = (prefill, spec_of(world.d, order))
        return await world.start_gateway(warm=False, endpoints=specs, **more), port

    yield make
    for port in ports:
        await port.stop()


async def test_each_leg_reaches_its_rank(order: Order, shape: Shape, ranked: Ranked) -> None:
    world, port = await ranked(order)
    names = 1 if world.pull else 2
    await eventually(lambda: len(world.gateway.registry.snapshot.prefill) == names)
    replies = await asyncio.gather(*(world.complete(shape) for _ in range(8)))
    assert [reply.text for reply in replies] == [shape.expected()] * 8
    assert await world.outcomes() == {"split": 8}
    if world.pull:
        assert set(port.pinned) == {None}, "P's answer names the rank: its own balancer may choose"
    else:
        assert port.pinned.keys() == {0, 1}
        assert all(engine.counts.prefills_finished >= 4 for engine in world.prefill), "in turn"
        ranks = [e for e in (await world.state())["endpoints"] if e["role"] == "prefill"]
        assert [(e["rank"], e["engineId"]) for e in ranks] == [
            (rank, engine.engine_id) for rank, engine in enumerate(world.prefill)
        ]


@pytest.mark.parametrize("push", [Order.DECODE_FIRST, Order.CONCURRENT])
async def test_a_leg_without_its_rank_leaves_decode_waiting(push: Order, ranked: Ranked) -> None:
    """Why ranks are pinned: here both ranks are one endpoint."""
    world, port = await ranked(push, ranks=1, engines={"sim": {"lease_seconds": 0.5}}, deadlines=SHORT)
    world.allowed.expired = world.allowed.stranded = True
    await eventually(lambda: world.gateway.registry.snapshot.prefill)
    for _ in range(4):
        assert (await world.complete()).text == Shape().expected()
    assert set(port.pinned) == {None}
    assert (await world.outcomes()).get("split", 0) < 4


@pytest.mark.parametrize("push", [Order.DECODE_FIRST, Order.CONCURRENT])
async def test_a_failure_of_one_rank_is_its_own(push: Order, ranked: Ranked) -> None:
    world, _ = await ranked(push)
    await eventually(lambda: len(world.gateway.registry.snapshot.prefill) == 2)
    world.allowed.stranded = True
    world.fault(world.p, FaultKind.STATUS, count=None)
    for _ in range(2 * OutlierDetection.consecutive_errors):
        assert (await world.complete()).text == Shape().expected()
        await eventually(lambda: world.settled)
        if len(world.gateway.registry.snapshot.prefill) < 2:
            break
    world.p.faults.clear()
    await eventually(lambda: len(world.gateway.registry.snapshot.prefill) == 2)
    assert sorted(e.generation for e in world.gateway.registry.snapshot.prefill) == [1, 2]


BASE = EndpointSpec(Address("h", 1), Role.PREFILL, order=Order.CONCURRENT, ranks=2)
SPECS = [
    (BASE, ["h:1_dp0", "h:1_dp1"]),
    (replace(BASE, pod="p-0"), ["p-0_dp0", "p-0_dp1"]),
    (replace(BASE, ranks=1), ["h:1"]),
    (replace(BASE, role=Role.DECODE), ["h:1"]),
    (replace(BASE, role=Role.AGGREGATED), ["h:1"]),
    (replace(BASE, order=Order.PREFILL_FIRST), ["h:1"]),
]


@pytest.mark.parametrize(("spec", "names"), SPECS)
def test_which_ranks_are_endpoints(spec: EndpointSpec, names: list[str]) -> None:
    assert [each.name for each in by_rank([spec])] == names


@pytest.mark.parametrize(("ranks", "found"), [("2", 2), ("1", 1)])
def test_the_flag(ranks: str, found: int) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags = ["--prefill", "http://p:1", "--decode", "http://d:1", "--prefill-ranks", ranks]
    assert [spec.ranks for spec in settings_of(parser.parse_args(flags)).endpoints] == [found, 1]


def test_no_rank_is_refused() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--prefill", "http://p:1", "--decode", "http://d:1", "--prefill-ranks", "0"])
    with pytest.raises(CommandError, match="--prefill-ranks is 0; write a number from 1 to 64"):
        settings_of(args)
