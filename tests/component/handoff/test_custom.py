"""Connector Custom through the gateway: P's leg carries the user's parameters, D's leg the parameters of P's answer."""

from dataclasses import replace
from pathlib import Path

from pdx_api.connectors.custom import Custom, FamilyName
from pdx_api.names import Order
from pdx_sim.core.counters import Violation
from pdx_sim.faults import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, spec_of

OWN = Custom(prefill_params={"do_remote_decode": True, "mine": {"deep": [1, "two"]}})
SIM = {"connector": "Custom", "protocol": OWN.protocol}


async def test_both_legs(make_world: MakeWorld, shape: Shape) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim=SIM)
    pulled = world.p.counts.pulled
    reply = await world.complete(shape)
    assert reply.text == shape.expected()
    assert world.p.counts.pulled == pulled + 1
    assert await world.outcomes() == {"split": 1}


async def test_a_pool(make_world: MakeWorld, shape: Shape, tmp_path: Path) -> None:
    """P saves, D finds, and no leg carries parameters."""
    pool = Custom(family_name=FamilyName.POOL)
    world = await make_world(
        Order.PREFILL_FIRST, sim={"connector": "Custom", "protocol": pool.protocol, "storage": str(tmp_path)}
    )
    assert (await world.complete(shape)).text == shape.expected()
    assert await world.outcomes() == {"split": 1}


async def test_a_prefill_that_fails_is_retried(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, prefill=2, sim=SIM)
    world.fault(world.p, FaultKind.STATUS, status=500, count=1)
    world.fault(world.prefill[1], FaultKind.STATUS, status=500, count=1)
    shape = Shape()
    assert (await world.complete(shape)).text == shape.expected()


async def test_other_parameters_than_engines_expect_are_noticed(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim=SIM, gateway=False)
    wrong = [replace(spec_of(engine, world.order), protocol=Custom().protocol) for engine in world.engines]
    await world.start_gateway(endpoints=tuple(wrong))
    world.allowed.violations.add(Violation.PREFILL_PARAMS)
    assert Violation.PREFILL_PARAMS in world.p.counts.violations
