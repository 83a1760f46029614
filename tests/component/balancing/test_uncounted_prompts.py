"""Prompts that no engine has computed: refused, abandoned or lost, they change nothing for the prompts that follow."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any

import pytest

from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Choosing
from pdx_proxy.config.settings import Health
from pdx_sim import FaultKind, SimEngine
from tests.component.conftest import MakeWorld
from tests.component.harness import SHORT, Reply, World, eventually

PATH = "/v1/completions"
MIB = 1 << 20
SIZES = (60, 30, 16, 8, 4, *[1, 2, 3] * 5)
"""MiB of each of 20 prompts."""
SIM = {"max_model_len": 16_384, "record": 0, "prefill_token_seconds": 4e-6, "max_num_batched_tokens": 16_384}
"""Engines that begin all prompts of `shares` in one step. Otherwise prompts wait in them, and on a busy machine the
gateway learns limits from that which differ from engine to engine, and so do the shares."""
DEFAULTS: dict[str, Any] = {
    "choosing": Choosing(),
    "debug_headers": True,
    "deadlines": SHORT,
    "health": Health(slow_start_seconds=0.0),
}
_NUMBERS = count()
Disturb = Callable[[World], Awaitable[None]]


def body_of(size: int, tokens: int = 2, model: str = "sim") -> bytes:
    """A request with a prompt of so many bytes, which begins as no other does."""
    prompt = f"{next(_NUMBERS)}: " + "word " * (size // 5)
    return json.dumps({"model": model, "prompt": prompt, "max_tokens": tokens}).encode()


async def shares(world: World, prompts: int) -> list[float]:
    """Send prompts that have nothing in common, four at a time; return each engine's share, the largest first."""
    found: Counter[str] = Counter()
    left = iter(range(prompts))
    header = "x-pdx-prefill" if world.prefill else "x-pdx-decode"

    async def send() -> None:
        for _ in left:
            reply = await world.post(PATH, body_of(6_000), {"Connection": "close"})
            assert reply.status == 200, reply.raw
            found[reply.headers[header]] += 1

    await asyncio.gather(*(send() for _ in range(4)))
    return sorted((number / prompts for number in found.values()), reverse=True)


async def leave(world: World, body: bytes, condition: Callable[[], object] = bool, part: float = 1.0) -> None:
    """Send a part of a request, wait for a condition if it is all of it, and disconnect."""
    world.sent += 1
    _, writer = await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body[: int(len(body) * part)])
    await writer.drain()
    if part == 1.0:
        await eventually(condition)
    writer.transport.abort()


def legs(world: World) -> int:
    """The legs that the engines have received."""
    return sum(engine.counts.legs.total() for engine in world.engines)


def more_legs(world: World, before: int) -> bool:
    """Whether an engine has received a further leg."""
    return legs(world) > before


def hangs(world: World) -> int:
    """The legs that engines have read and do not answer."""
    return sum(engine.counts.faults[FaultKind.HANG_BEFORE_HEAD.value] for engine in world.engines)


def more_hangs(world: World, before: int) -> bool:
    """Whether an engine has read a further leg."""
    return hangs(world) > before


def is_idle(engine: SimEngine) -> bool:
    """Whether an engine has stopped to work on what was abandoned."""
    return not engine.counts.running_now and not engine.counts.waiting_now


async def is_settled(world: World) -> None:
    """Wait until no request or settlement is in flight."""
    async with asyncio.timeout(20.0):
        while any((await world.state())["inFlight"].values()):  # noqa: ASYNC110 (it is read over HTTP)
            await asyncio.sleep(0.01)


async def refused(world: World) -> None:
    """The engines refuse the larger ones for their model, which a simulated engine does before it reads the prompt."""
    for size in SIZES:
        reply = await world.post(PATH, body_of(size * MIB, model="sim" if size < 4 else "none"))
        assert reply.status == (400 if size < 4 else 404)


async def left_while_uploading(world: World) -> None:
    for size in SIZES:
        await leave(world, body_of(size * MIB), part=0.5)
    await is_settled(world)


async def left_while_p_reads(world: World) -> None:
    """Prompts that an engine has received whole and not answered."""
    for engine in world.prefill or world.decode:
        engine.faults.add(FaultKind.HANG_BEFORE_HEAD, count=None, seconds=30.0)
    for size in SIZES:
        await leave(world, body_of(size * MIB), partial(more_hangs, world, hangs(world)))
    await is_settled(world)
    for engine in world.engines:
        engine.faults.clear()


async def left_while_p_computes(world: World) -> None:
    """Prompts that an engine accepts, and does not finish: of four engines, one gets fewer of them."""
    for engine in world.prefill or world.decode:
        engine.faults.add(FaultKind.LONG_PREFILL, count=None, seconds=30.0)
    for _ in range(19):
        await leave(world, body_of(60_000), partial(more_legs, world, legs(world)))
    await is_settled(world)
    for engine in world.engines:
        engine.faults.clear()
        await eventually(partial(is_idle, engine))


async def lost(world: World) -> None:
    """Each P dies once over a prompt that the others refuse."""
    for engine in world.prefill:
        world.fault(engine, FaultKind.DIE_BEFORE_HEAD)
    async with asyncio.timeout(60.0):
        while any(engine.faults.active for engine in world.prefill):
            await asyncio.gather(*(world.post(PATH, body_of(MIB)) for _ in range(8)))
    await world.warm()


@pytest.mark.parametrize(
    ("disturb", "order", "prefill", "workers"),
    [
        *((disturb, Order.PREFILL_FIRST, 4, 1) for disturb in (refused, left_while_uploading, lost)),
        *((left, Order.PREFILL_FIRST, 4, n) for left in (left_while_p_reads, left_while_p_computes) for n in (1, 2)),
        *((refused, Order.DECODE_FIRST, 4, 2), (refused, Order.PREFILL_FIRST, 0, 2)),
        *((left, Order.PREFILL_FIRST, 0, 1) for left in (left_while_p_reads, left_while_p_computes)),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_the_next_prompts_are_spread_as_without_them(
    disturb: Disturb, order: Order, prefill: int, workers: int, make_world: MakeWorld
) -> None:
    d = {} if prefill else {"role": Role.AGGREGATED}
    world = await make_world(order, prefill, 2 if prefill else 4, sim=SIM, d=d, workers=workers, **DEFAULTS)
    before = await shares(world, 400)
    await disturb(world)
    after = await shares(world, 400)
    assert after[0] <= before[0] + 0.05, (before, after)


TALKS = range(40)


async def turn_of_all(world: World, rounds: int) -> list[str]:
    """Send one turn of each conversation; return the P of each."""
    roles = ("user", "assistant")

    def talk(number: int) -> dict[str, Any]:
        messages = [{"role": roles[n % 2], "content": f"{number}.{n}: " + "word " * 400} for n in range(2 * rounds - 1)]
        return {"model": "sim", "messages": messages, "max_tokens": 2}

    replies: list[Reply] = [await world.post("/v1/chat/completions", talk(number)) for number in TALKS]
    assert {reply.status for reply in replies} == {200}
    return [reply.headers["x-pdx-prefill"] for reply in replies]


@pytest.mark.parametrize("size", [1, 4])
async def test_conversations_stay_where_their_kv_is(size: int, make_world: MakeWorld) -> None:
    """After as many prompts of 1 MiB as there are P's, or of 4 MiB."""
    world = await make_world(Order.PREFILL_FIRST, 4, 2, sim=SIM, **DEFAULTS)
    before = await turn_of_all(world, 1)
    for _ in range(4):
        assert (await world.post(PATH, body_of(size * MIB))).status == 400
    after = await turn_of_all(world, 2)
    assert [one == other for one, other in zip(before, after, strict=True)].count(True) >= 39
    tokens = world.report["prefill"]["tokens"]
    assert tokens["cached"] > 0.24 * (tokens["cached"] + tokens["computed"]), "the first turn of each"


async def test_a_prompt_that_only_d_refuses_counts_at_its_p(make_world: MakeWorld, order: Order) -> None:
    """P has computed it, unless D refused it before P began."""
    world = await make_world(order, 1, 1, sim=SIM, **DEFAULTS)
    chooser = world.worker._serving.chooser
    p, d = (chooser.prefills.expected.engine(world.endpoint(each).name) for each in (world.p, world.d))
    reply = await world.post(PATH, body_of(60_000, tokens=4_000))
    assert reply.status == 400
    await is_settled(world)
    computed = order is not Order.DECODE_FIRST
    assert (p.backlog, p.recent > 15_000, p.cache.tokens > 14_000) == (0, computed, computed)
    assert (d.cache.tokens, len(d.cache), chooser.decodes._kept._count) == (0, 0, 0)
    assert (await world.post(PATH, body_of(60_000))).status == 200
    assert d.cache.tokens > 14_000
    assert chooser.decodes._kept._count == 1


async def test_a_prompt_of_many_bytes_is_bounded(make_world: MakeWorld) -> None:
    """While P's engine reads a prompt of 4 MiB, its backlog is that of the longest prompt."""
    world = await make_world(Order.PREFILL_FIRST, 1, 1, sim=SIM, **DEFAULTS)
    world.fault(world.p, FaultKind.HANG_BEFORE_HEAD, seconds=1.0)
    expected = world.worker._serving.chooser.prefills.expected
    request = asyncio.create_task(world.post(PATH, body_of(4 * MIB)))
    await eventually(lambda: any(engine.backlog for engine in expected.engines.values()))
    assert expected.engine(world.endpoint(world.p).name).backlog == 16_385
    assert (await request).status == 400
