"""Pairs of each version of vLLM serve requests; a P and a D of different versions hand over nothing."""

from dataclasses import replace

import pytest

from pdx_api.names import Order, Role
from pdx_api.vllm.versions import VERSIONS
from pdx_sim import SimSettings
from tests.component.harness import AGENT_SHAPES, FAST, SHAPES, Shape, World

SHAPES_OF_ALL = (*SHAPES, *AGENT_SHAPES)


def engines(order: Order, version: str, role: Role) -> list[SimSettings]:
    return [replace(FAST, order=order, role=role, version=f"{version}.0")]


@pytest.mark.parametrize("order", [Order.PREFILL_FIRST, Order.DECODE_FIRST])
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_pair_of_each_version_serves_every_shape(version: str, order: Order) -> None:
    world = World(order)
    try:
        await world.start_engines(*(engines(order, version, role) for role in (Role.PREFILL, Role.DECODE)))
        await world.start_gateway()
        for shape in SHAPES_OF_ALL:
            reply = await world.complete(shape, tokens=12)
            assert (reply.status, reply.text) == (200, shape.expected(tokens=12)), shape
        assert await world.outcomes() == {"split": len(SHAPES_OF_ALL)}
        await world.check()
    finally:
        await world.close()


async def test_vllm_033_has_what_the_simulator_shows() -> None:
    """Without a gateway: each event with a token has `kv_transfer_params`."""
    world = World(Order.PREFILL_FIRST)
    try:
        await world.start_engines(engines(Order.PREFILL_FIRST, "0.33", Role.PREFILL), [])
        reply = await world.direct(world.p, Shape(stream=True), tokens=2)
        assert [chunk.get("kv_transfer_params", "absent") for chunk in reply.chunks] == [None, None]
    finally:
        await world.close()
