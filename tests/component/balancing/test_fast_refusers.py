"""An engine that refuses every request at once gets no more than its fair share, although it always has room."""

import asyncio
from typing import Any

import pytest

from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Choosing
from pdx_sim import FaultKind, SimEngine
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually

SLOW: dict[str, Any] = {"decode_token_seconds": 0.01, "prefill_token_seconds": 1e-4}
REQUESTS = 120
MOST = 0.45
"""A third of the legs is fair. On a busy machine, the measured speeds of the engines differ, and one that refuses
counts as fast as the mean: 0.42 then. If its refusals were no turns, or its little work were a merit, it would be 0.49
or more."""
REFUSALS: dict[str, dict[str, Any]] = {
    "400": {"kind": FaultKind.STATUS, "status": 400},
    "404": {"kind": FaultKind.STATUS, "status": 404},
    "429": {"kind": FaultKind.STATUS, "status": 429},
    "500": {"kind": FaultKind.STATUS, "status": 500},
    "503": {"kind": FaultKind.STATUS, "status": 503},
    "reset": {"kind": FaultKind.DIE_BEFORE_HEAD},
}
AT_FAULT = ("500", "reset")
"""What a second engine does not repeat: it ejects the engine."""


async def share(world: World, engine: SimEngine, clients: int) -> float:
    """The engine's share of its role's legs, while so many clients send one request after the other."""
    group = world.decode if engine in world.decode else world.prefill
    before = [each.counts.requests.total() for each in group]
    numbers = iter(range(REQUESTS))

    async def send() -> None:
        for number in numbers:
            await world.complete(Shape(), prompt=f"{number} is the number of this prompt. " * 20)

    await asyncio.gather(*(send() for _ in range(clients)))
    got = [each.counts.requests.total() - count for each, count in zip(group, before, strict=True)]
    return got[group.index(engine)] / sum(got)


@pytest.mark.parametrize("clients", [1, 12])
@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("role", [Role.AGGREGATED, Role.DECODE, Role.PREFILL])
async def test_it_gets_its_share_at_most(role: Role, refusal: str, clients: int, make_world: MakeWorld) -> None:
    prefills, d = (0, {**SLOW, "role": role}) if role is Role.AGGREGATED else (3, SLOW)
    world = await make_world(Order.PREFILL_FIRST, prefills, 3, p=SLOW, d=d, choosing=Choosing())
    engine = world.p if role is Role.PREFILL else world.d
    engine.faults.add(count=None, **REFUSALS[refusal])
    found = await share(world, engine, clients)
    ejected = refusal in AT_FAULT and role is not Role.PREFILL and clients == 1
    assert found <= (0.2 if ejected else MOST)
    engine.faults.clear()
    world.void = True  # the legs that were refused are settled in their own time


async def test_a_request_that_only_frees_kv_is_neither_served_nor_refused(make_world: MakeWorld) -> None:
    """D refuses each request, and afterwards gets another one that frees the KV at P, because D can notify P."""
    world = await make_world(Order.PREFILL_FIRST, 1, 2, p=SLOW, d=SLOW)
    await asyncio.gather(*(world.complete(prompt=f"{number} comes before. " * 20) for number in range(4)))
    served = world.d.counts.requests.total()
    world.d.faults.add(count=None, **REFUSALS["503"])
    for number in range(12):
        await world.complete(prompt=f"{number} is the number of this prompt. " * 20)
    refused = (await world.state())["retries"]["status"]
    await eventually(lambda: world.d.counts.requests.total() == served + 2 * refused, what="each refusal is settled")
    await eventually(lambda: not world.worker._engines.load.legs, what="no leg is left")
    refusal = world.worker._engines.load.refusals[world.endpoint(world.d).name]
    assert refusal.number == refused > 1
    own = world.worker._engines.leg(world.endpoint(world.d))
    own.end()  # as if it had found no connection
    assert refusal.number == refused
    world.d.faults.clear()
    world.void = True
