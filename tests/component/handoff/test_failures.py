"""Runs the rows of docs/failure-matrix.md: what the client sees, what engines see, which counters change."""

import asyncio
import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_proxy.config.settings import Retries
from pdx_proxy.http.upstream.failures import Reason
from pdx_sim import FaultKind, Leg, SimEngine
from tests.component.conftest import MakeWorld
from tests.component.harness import PROMPT, Reply, Shape, World, eventually, prompt_of
from tests.component.stalls import watched
from tests.failure_matrix.row import (
    LONG,
    MOONCAKE_ALL,
    Case,
    Client,
    Row,
    Strike,
    Wiring,
)
from tests.failure_matrix.rows import fault_rows

TOKENS = 12
LIMITS = ("max_tokens", "max_output_tokens")
LONGEST = 15.0
"""No row waits for a deadline of LONG."""
TRIES = 4
CASES = [case for row in fault_rows() for case in row.cases()]
AGENT_WIRINGS = (Wiring.PREFILL_FIRST, Wiring.CONCURRENT, Wiring.MOONCAKE_CONCURRENT)
"""With these, rows are run by the APIs of coding agents too. Over Mooncake, messages have their own order."""


def _cases() -> Iterator[Any]:
    """Every case. Of a row, an order and a policy, `make test` runs one form; `make soak` runs both.

    The forms take turns within an order and a kind of failure. They differ in who waits for the first event.
    """
    groups: dict[Any, list[Case]] = defaultdict(list)
    for case in CASES:
        groups[case.row.id, case.order, case.policy].append(case)
    seen: Counter[Any] = Counter()
    for group in groups.values():
        strike = group[0].row.strike
        kind = group[0].order, strike and (strike.role, strike.kind)
        for place, case in enumerate(group):
            marks = () if place == seen[kind] % len(group) else pytest.mark.soak
            yield pytest.param(case, marks=marks, id=_id(case))
        seen[kind] += 1


def _agent_cases() -> Iterator[Any]:
    """The rows in which an attempt is repeated, each once in an order, with alternating APIs.

    Those in which an engine hangs differ in deadlines alone. In a stream of responses no event reports a failed load.
    Of those with the same API, form, retries, legs and outcomes, `make test` runs one; `make soak` runs all.
    """
    paths: set[Any] = set()
    repeated = [case for case in CASES if case.row.retries and case.order in AGENT_WIRINGS]
    found = {(case.row.id, case.order): case for case in repeated if case.row.deadlines is LONG}
    for number, case in enumerate(found.values()):
        reports = Reason.ERROR_EVENT in case.row.retries
        if reports and case.order in MOONCAKE_ALL:
            continue
        agent = "messages" if reports or (number % 2 and case.order not in MOONCAKE_ALL) else "responses"
        path = (case.order, agent, case.stream, case.row.legs, *case.row.retries.items(), *case.row.outcomes.items())
        marks = pytest.mark.soak if path in paths else ()
        paths.add(path)
        yield pytest.param(case, Shape(agent=agent, stream=case.stream), marks=marks, id=f"{_id(case)}-{agent}")


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


def _lasts(strike: Strike) -> bool:
    """Whether the engines still fail when hand-offs are settled: a full P that has room by then frees D."""
    return strike.always and strike.role is Role.PREFILL and strike.fields.get("status") == 503


def _legs(engines: list[SimEngine], leg: Leg) -> int:
    """Count the legs of the client's request, without those of warm-up and settlement."""
    return sum(seen.leg is leg and _is_the_prompt(seen.body, leg) for engine in engines for seen in engine.seen)


def _is_the_prompt(body: dict[str, Any], leg: Leg) -> bool:
    return prompt_of(body) == PROMPT and (leg is Leg.PREFILL or TOKENS in (body.get(name) for name in LIMITS))


def _is_right(reply: Reply, shape: Shape) -> bool:
    return reply.status == 200 and (not shape.stream or reply.done) and reply.text == shape.expected(tokens=TOKENS)


def _is_the_gateways(reply: Reply, status: int, anthropic: str) -> bool:
    """Whether it is an error of the gateway with this status, and of this type in Anthropic's shape."""
    error = reply.error
    named = error["code"] == status if "code" in error else (reply.json["type"], error["type"]) == ("error", anthropic)
    return reply.status == status and named


def _is_unavailable(reply: Reply, _: Shape) -> bool:
    return _is_the_gateways(reply, 503, "overloaded_error") and reply.headers["retry-after"] == "1"


def _is_engines(reply: Reply, _: Shape) -> bool:
    return reply.status >= 500 and reply.error["message"] == "simulated fault"


def _is_late(reply: Reply, _: Shape) -> bool:
    return _is_the_gateways(reply, 504, "timeout_error")


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
            "decoder_ttl_seconds": 1.0 if row.stranded and case.order in MOONCAKE_ALL else 480.0,
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


@pytest.mark.parametrize("case", list(_cases()))
async def test_row(case: Case, make_world: MakeWorld, tmp_path: Path) -> None:
    await _run(case, Shape(case.stream, case.stream), make_world, tmp_path)


@pytest.mark.parametrize(("case", "shape"), list(_agent_cases()))
async def test_agents_row(case: Case, shape: Shape, make_world: MakeWorld, tmp_path: Path) -> None:
    """A retry of a coding agent's request runs P again, or D alone; `World.check` compares the legs' parameters."""
    await _run(case, shape, make_world, tmp_path)


async def _run(case: Case, shape: Shape, make_world: MakeWorld, storage: Path) -> None:
    """Run the row. If it has short deadlines, and a stall of the machine was as long as one, run it in a new world."""
    for attempt in range(1, TRIES + 1):
        world = await _world(case, make_world, storage / str(attempt))
        async with watched() as stalls:
            try:
                await _check_row(case, shape, world)
                if case.row.deadlines is not LONG:
                    await world.check()
                return
            except (AssertionError, TimeoutError):
                if case.row.deadlines is LONG or not stalls.matter or attempt == TRIES:
                    raise
        world.void = True


async def _complete(world: World, shape: Shape, prompt: str, times: int) -> None:
    """Send requests whose answers must be right, and wait until they are settled."""
    async with asyncio.timeout(LONGEST):
        for _ in range(times):
            reply = await world.complete(shape, prompt=prompt, tokens=2)
            assert (reply.status, reply.text) == (200, shape.expected(prompt, 2)), reply
    await eventually(lambda: world.settled, 5.0, "settled")


async def _check_row(case: Case, shape: Shape, world: World) -> None:
    row = case.row
    if all(row.ready):
        await _complete(world, shape, "first", times=4)  # connections are used, and pairs have a handshake
    before = copy.deepcopy(world.report)
    struck = _strike(world, row.strike) if row.strike is not None else []
    async with asyncio.timeout(LONGEST):
        replies = [await world.complete(shape, tokens=TOKENS) for _ in range(row.requests)]
    assert all(SEEN[Client(row.client)](reply, shape) for reply in replies), replies
    if row.strike is not None and _lasts(row.strike):
        await eventually(lambda: world.settled, 5.0, "settled")
    for engine in struck:
        engine.faults.clear()
    await eventually(lambda: world.settled, 5.0, "settled")
    if row.lease:
        for engine in world.engines:
            engine.end_leases()
    _check_counters(row, world, before)
    legs = (_legs(world.prefill, Leg.PREFILL), _legs(world.decode, Leg.DECODE), _legs(world.decode, Leg.PLAIN))
    assert all(expected in (None, got) for expected, got in zip(row.legs, legs, strict=True)), legs
    if all(row.ready):
        await world.warm()
        await _complete(world, shape, "last", times=1)
    if case.order in MOONCAKE_ALL:
        await _check_transfer_ids(row, world)


async def _check_transfer_ids(row: Row, world: World) -> None:
    """No P keeps a transfer ID for a D that does not come. A P that has begun gets it again for short legs only."""
    await eventually(lambda: not any(engine.counts.registered_now for engine in world.engines), 5.0, "places")
    if row.strike is None or row.strike.used or row.strike.fields.get("status") in (400, 503):  # P has not begun
        return
    bodies = [seen.body for p in world.prefill for seen in p.seen if seen.leg is Leg.PREFILL]
    ids = [body["kv_transfer_params"]["transfer_id"] for body in bodies if prompt_of(body) != "."]
    assert len(ids) == len(set(ids))


def _check_counters(row: Row, world: World, before: dict[str, Any]) -> None:
    """Compare what was counted since `before`."""
    outcomes, retries, settled = (
        {name: new for name, count in world.report[kind].items() if (new := count - before[kind].get(name, 0))}
        for kind in ("outcomes", "retries", "settlements")
    )
    assert outcomes == row.outcomes
    assert retries == row.retries
    if isinstance(row.settled, tuple):
        assert settled.keys() <= set(row.settled)
        assert settled or None in row.settled
    else:
        assert settled == row.settled
