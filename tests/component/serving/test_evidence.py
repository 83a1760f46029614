"""Failures that are evidence about a request or its client, and not about an engine."""

from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Keys
from pdx_proxy.config.settings import Health, Retries
from pdx_sim import FaultKind, SimEngine
from pdx_sim.api.server import Seen
from tests.component.bad_requests import KINDS, Limiter, Watched
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually
from tests.component.http.scripted import DONE, LAST, STREAM, TOKEN, Script, chunk, scripted

TOKENS: Final = 8
A: Final = {"Authorization": "Bearer a"}
B: Final = {"Authorization": "Bearer b"}
STRICT: Final = Health(consecutive_errors=2)


def _note(received: list[SimEngine], engine: SimEngine, seen: Seen) -> None:
    """Note a prefill leg, or a request of a decode engine that does more than to free blocks."""
    tokens = seen.body.get("max_tokens", seen.body.get("max_output_tokens"))
    if engine.settings.role is Role.PREFILL or tokens == TOKENS:
        received.append(engine)


async def _world(make_world: MakeWorld, order: Order, *numbers: int, **more: Any) -> World:
    world = await make_world(order, *(numbers or (2, 3)), **{"sim": {"lease_seconds": 0.5}, **more})
    world.allowed.stranded = world.allowed.expired = True
    return world


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_same_error_of_two_engines_is_the_requests(stream: bool, order: Order, make_world: MakeWorld) -> None:
    """Each kind that vLLM 0.32 answers with 500. No engine is ejected, even if two errors in a row would eject one."""
    world = await _world(make_world, order, health=STRICT)
    for path, body, message in KINDS.values():
        for _ in range(4):
            before = world.report
            reply = await world.post(path, {**body, "stream": stream})
            assert (reply.status, reply.error["message"], reply.headers.get("retry-after")) == (500, message, None)
            await eventually(lambda: world.settled)
            assert sum(world.report["retries"].values()) == sum(before["retries"].values()) + 1, "counted once"
    assert all(endpoint.generation == 1 and endpoint.warm for endpoint in world.gateway.registry.snapshot.everything)
    assert (await world.complete()).text == Shape().expected()


@pytest.mark.parametrize("kind", KINDS)
async def test_such_a_request_costs_two_decode_requests_and_one_prefill(
    kind: str, order: Order, make_world: MakeWorld
) -> None:
    world = await _world(make_world, order)
    received: list[SimEngine] = []
    for engine in world.engines:
        Watched.attach(engine, partial(_note, received, engine))
    path, body, _ = KINDS[kind]
    assert (await world.post(path, body)).status == 500
    await eventually(lambda: world.settled)
    assert 1 <= sum(engine in world.decode for engine in received) <= 2
    assert sum(engine in world.prefill for engine in received) <= 1


async def test_other_errors_count(make_world: MakeWorld) -> None:
    """Only one D answers 500, so its errors are its own, although they came with one client's requests."""
    world = await _world(make_world, Order.PREFILL_FIRST, 0, 2, health=Health(consecutive_errors=3))
    world.d.faults.add(FaultKind.STATUS, count=None)
    for number in range(20):
        assert (await world.complete(prompt=f"prompt {number}")).text == Shape().expected(f"prompt {number}")
        if world.endpoint(world.d).generation > 1 or not world.endpoint(world.d).warm:
            break
    assert (await world.state())["ejections"]["consecutive_errors"] == 1
    world.d.faults.clear()
    await world.warm()


async def test_a_request_at_fault_takes_nothing_from_the_budget(make_world: MakeWorld) -> None:
    """Requests that cannot be split, so that each retry needs the budget."""
    world = await _world(make_world, Order.PREFILL_FIRST, 0, 2, retries=Retries(min_retries=1, budget_percent=0))
    path, body, _ = KINDS["completion: structured_outputs is no object"]
    for _ in range(5):
        assert (await world.post(path, body)).status == 500
    assert world.report["retriesRefused"] == 0
    world.d.faults.add(FaultKind.STATUS)
    assert (await world.complete()).text == Shape().expected()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    lines = (f"sha256:{sha256(name.encode()).hexdigest()} {name}\n" for name in ("a", "b"))
    (tmp_path / "clients").write_text("".join(lines))
    return Keys(clients=str(tmp_path / "clients"))


async def test_one_client_leaves_half_of_the_budget_to_the_others(make_world: MakeWorld, keys: Keys) -> None:
    retries = Retries(min_retries=4, budget_percent=0)
    world = await _world(make_world, Order.PREFILL_FIRST, 0, 2, retries=retries, keys=keys)
    for engine in world.decode:
        engine.faults.add(FaultKind.STATUS, count=None, status=503)
    failed = []
    for headers in (A, A, A, B, B):
        before = sum(world.report["retries"].values())
        assert (await world.complete(headers=headers)).status == 503
        failed.append(sum(world.report["retries"].values()) - before)
    assert failed == [3, 1, 1, 3, 1], "the failed attempts of each request"
    assert world.report["retriesRefused"] == 3
    for engine in world.decode:
        engine.faults.clear()


def _limit(world: World, status: int) -> None:
    for engine in world.engines:
        Limiter(engine, "Bearer a", status)


@pytest.mark.parametrize("status", [429])
async def test_a_limit_of_a_credential_concerns_no_other(status: int, order: Order, make_world: MakeWorld) -> None:
    """A is told the time, and gets nothing more to the engines; B is served as before."""
    world = await _world(make_world, order, 2, 2)
    _limit(world, status)
    for number in range(6):
        prompt = f"prompt {number}"
        first = await world.complete(headers=A, prompt=prompt)
        assert (first.status, int(first.headers["retry-after"]) > 5) == (429, True)
        reply = await world.complete(headers=B, prompt=prompt)
        assert (reply.status, reply.text) == (200, Shape().expected(prompt))
    assert sum(engine.counts.faults[FaultKind.STATUS.value] for engine in world.decode) <= 2
    assert (await world.outcomes())["split"] == 6
    assert all(each.warm and each.generation == 1 for each in world.gateway.registry.snapshot.everything)


async def test_the_queue_of_an_engine_concerns_all(make_world: MakeWorld) -> None:
    """A 503 with an error in vLLM's format is the engine's own, although the request had a credential."""
    world = await _world(make_world, Order.PREFILL_FIRST, 0, 1)
    _limit(world, 503)
    assert (await world.complete(headers=A)).status == 503
    received = world.d.counts.requests.total()
    reply = await world.complete(headers=B)
    assert (reply.status, world.d.counts.requests.total()) == (503, received)


async def test_answers_that_break_off_in_the_same_place(order: Order, make_world: MakeWorld) -> None:
    world = await _world(make_world, order, health=STRICT)
    shape = Shape(stream=True)
    for engine in world.decode:
        engine.faults.add(FaultKind.DIE_AFTER_HEAD, count=None)
    received: list[SimEngine] = []
    for engine in world.decode:
        Watched.attach(engine, partial(_note, received, engine))
    for _ in range(3):
        received.clear()
        reply = await world.complete(shape)
        assert (reply.status, "broke off" in reply.error["message"]) == (500, True)
        assert "retry-after" not in reply.headers
        await eventually(lambda: world.settled)
        assert len({engine.port for engine in received}) == 2
    for engine in world.decode:
        engine.faults.clear()
    assert all(each.warm and each.generation == 1 for each in world.gateway.registry.snapshot.everything)


async def test_a_connection_is_not_used_again_behind_a_500(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, 0, 0, gateway=False)
    body = b'{"error":{"message":"x","type":"InternalServerError","param":null,"code":500}}'
    head = b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    served = Script(STREAM + chunk(TOKEN) + chunk(DONE) + LAST)
    async with scripted(world, Script(head % len(body) + body), served) as engine:
        reply = await world.post("/v1/completions", {"model": "m", "prompt": "a", "scripted": 1, "stream": True})
        assert reply.status == 200
        assert engine.requests == 2
        first, second = engine.connections_of
        assert first != second, "the second came over another connection"
