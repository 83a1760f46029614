"""Runs the rows of docs/failures.md: what the client sees, what engines see, which counters change."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_proxy.config.settings import Retries
from pdx_sim import FaultKind, Leg, SimEngine
from tests.component.conftest import MakeWorld
from tests.component.harness import PROMPT, Reply, Shape, World, eventually
from tests.failure_matrix.mooncake import mooncake_rows
from tests.failure_matrix.row import MOONCAKE_ALL, Case, Client, Row, Strike, Wiring
from tests.failure_matrix.rows import rows

TOKENS = 12
LONGEST = 15.0
"""No row waits for a deadline of LONG."""
CASES = [case for row in (*rows(), *mooncake_rows()) for case in row.cases()]


def _id(case: Case) -> str:
    return case.test.partition("[")[2].removesuffix("]")


def _strike(world: World, strike: Strike) -> list[SimEngine]:
    """Inject the fault into all engines of its role, or into the first one that gets a leg."""
    victims = world.prefill if strike.role is Role.PREFILL else world.decode
    if strike.kind is FaultKind.REFUSE:
        struck = victims if strike.always else victims[:1]
        for engine in struck:
            engine.faults.add(strike.kind)
        return struck
    for engine in victims[1:]:
        engine.faults = victims[0].faults
    world.fault(victims[0], strike.kind, count=None if strike.always else 1, **strike.fields)
    return victims


def _legs(engines: list[SimEngine], leg: Leg) -> int:
    """Count the legs of the client's request, without those of warm-up and settlement."""
    return sum(seen.leg is leg and _is_the_prompt(seen.body, leg) for engine in engines for seen in engine.seen)


def _is_the_prompt(body: dict[str, Any], leg: Leg) -> bool:
    prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
    return prompt == PROMPT and (leg is Leg.PREFILL or body["max_tokens"] == TOKENS)


def _is_right(reply: Reply, shape: Shape) -> bool:
    return reply.status == 200 and (not shape.stream or reply.done) and reply.text == shape.expected(tokens=TOKENS)


def _is_unavailable(reply: Reply, _: Shape) -> bool:
    return (reply.status, reply.error["code"], reply.headers["retry-after"]) == (503, 503, "1")


def _is_engines(reply: Reply, _: Shape) -> bool:
    return reply.status >= 500 and reply.error["message"] == "simulated fault"


def _is_late(reply: Reply, _: Shape) -> bool:
    return (reply.status, reply.error["code"]) == (504, 504)


def _is_event(reply: Reply, shape: Shape) -> bool:
    """The text before the error is the beginning of the right answer."""
    begun = shape.expected(tokens=TOKENS).startswith(reply.text) and reply.text != ""
    return reply.status == 200 and reply.done and begun and reply.chunks[-1]["error"]["code"] >= 500


def _is_as_it_came(reply: Reply, _: Shape) -> bool:
    return reply.status == 200 and not reply.cut


SEEN: dict[Client, Callable[[Reply, Shape], bool]] = {
    Client.RIGHT: _is_right,
    Client.UNAVAILABLE: _is_unavailable,
    Client.ENGINES: _is_engines,
    Client.LATE: _is_late,
    Client.EVENT: _is_event,
    Client.REFUSED: lambda reply, _: (reply.status, reply.error["code"]) == (400, 400),
    Client.CUT: lambda reply, _: reply.cut and not reply.done,
    Client.AS_IT_CAME: _is_as_it_came,
}


async def _world(case: Case, make_world: MakeWorld, storage: Path) -> World:
    row = case.row
    used = row.strike is not None and row.strike.used
    world = await make_world(
        case.order.order,
        *row.ready,
        storage=storage if case.order is Wiring.POOL else None,
        connector=case.order.connector,
        sim={
            "lease_seconds": 30.0,
            "decoder_ttl_seconds": 0.6 if row.stranded and case.order in MOONCAKE_ALL else 480.0,
        },
        d={"decode_token_seconds": 0.002},
        deadlines=row.deadlines,
        retries=Retries(on_prefill_failure=case.policy),
        idle_seconds=4.0 if used else 0.0,
        warm=all(row.ready),
    )
    world.allowed.stranded, world.allowed.expired = row.stranded, row.lease
    world.allowed.orphan_tokens = 200
    if not all(row.ready):
        await eventually(lambda: len(world.gateway.registry.snapshot.decode) == row.ready[1])
    return world


@pytest.mark.parametrize("case", CASES, ids=_id)
async def test_row(case: Case, make_world: MakeWorld, tmp_path: Path) -> None:
    row, shape = case.row, Shape(case.stream, case.stream)
    world = await _world(case, make_world, tmp_path)
    if all(row.ready):
        for _ in range(4):  # connections have been used, and pairs have a handshake
            assert (await world.complete(shape, prompt="first", tokens=2)).status == 200
    before = world.report["outcomes"].copy()
    struck = _strike(world, row.strike) if row.strike is not None else []
    async with asyncio.timeout(LONGEST):
        replies = [await world.complete(shape, tokens=TOKENS) for _ in range(row.requests)]
    assert all(SEEN[Client(row.client)](reply, shape) for reply in replies), replies
    for engine in struck:
        engine.faults.clear()
    await eventually(lambda: not any(world.report["inFlight"].values()), 5.0, "settled")
    if row.lease:
        for engine in world.engines:
            engine.end_leases()
    _check_counters(row, world, before)
    legs = (_legs(world.prefill, Leg.PREFILL), _legs(world.decode, Leg.DECODE), _legs(world.decode, Leg.PLAIN))
    assert all(expected in (None, got) for expected, got in zip(row.legs, legs, strict=True)), legs
    if all(row.ready):
        await world.warm()
        assert (await world.complete(shape, prompt="last", tokens=2)).text == shape.expected("last", 2)
    if case.order in MOONCAKE_ALL:
        await _check_transfer_ids(row, world)


async def _check_transfer_ids(row: Row, world: World) -> None:
    """No P keeps a transfer ID for a D that does not come. A P that has begun gets it again for short legs only."""
    await eventually(lambda: not any(engine.counts.registered_now for engine in world.engines), 5.0, "places")
    if row.strike is None or row.strike.used or row.strike.fields.get("status") in (400, 503):  # P has not begun
        return
    bodies = [seen.body for p in world.prefill for seen in p.seen if seen.leg is Leg.PREFILL]
    ids = [body["kv_transfer_params"]["transfer_id"] for body in bodies if body.get("prompt") != "."]
    assert len(ids) == len(set(ids))


def _check_counters(row: Row, world: World, before: dict[str, int]) -> None:
    report = world.report
    moved = {name: count - before[name] for name, count in report["outcomes"].items() if count != before[name]}
    assert moved == row.outcomes
    assert report["retries"] == row.retries
    settled = {name: count for name, count in report["settlements"].items() if count}
    if isinstance(row.settled, tuple):
        assert settled.keys() <= set(row.settled)
        assert settled or None in row.settled
    else:
        assert settled == row.settled
