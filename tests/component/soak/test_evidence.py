"""One client's mistakes and limits beside other clients: 20 s always, some minutes in `make soak`."""

import asyncio
import itertools
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import pytest

from benchmarks.soak.results import print_line
from pdx_api.names import Order
from pdx_api.settings.gateway import Keys
from pdx_sim import SimEngine
from pdx_sim.api.server import Seen
from tests.component.bad_requests import KINDS, MARK, Limiter, Watched
from tests.component.conftest import MakeWorld
from tests.component.harness import Reply, Shape, World

pytestmark = pytest.mark.paced
SOAK: Final = [pytest.mark.soak, pytest.mark.timeout(1200)]
PERIOD: Final = 0.5
"""Of the bad requests of one kind."""
DOWN: Final = 1.0
ENGINES: Final = {"prefill_base_seconds": 0.02, "decode_token_seconds": 0.01, "lease_seconds": 3.0}
TOKENS: Final = 30
LONGEST_TTFT: Final = 1.2
"""The p99 of B's TTFT beside A, in times of that without A."""


@dataclass
class Tally:
    """What clients saw, and what bad requests cost."""

    kills: list[float] = field(default_factory=list)
    others: int = 0
    cut: int = 0
    """Streams that a killed engine had begun."""
    failed: list[Any] = field(default_factory=list)
    bad: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By the ID of a bad request, when it began and ended."""
    wrong: list[Any] = field(default_factory=list)
    decode: dict[str, int] = field(default_factory=dict)
    prefill: dict[str, int] = field(default_factory=dict)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    lines = (f"sha256:{sha256(name.encode()).hexdigest()} {name}\n" for name in ("bad", "good"))
    (tmp_path / "clients").write_text("".join(lines))
    return Keys(clients=str(tmp_path / "clients"))


@pytest.mark.parametrize(
    ("order", "seconds", "every"),
    [
        pytest.param(Order.PREFILL_FIRST, 13.0, 4.0, marks=pytest.mark.timeout(120), id="short"),
        *(pytest.param(order, 240.0, 20.0, marks=SOAK, id=f"long-{order}") for order in Order),
    ],
)
async def test_bad_requests_cost_other_clients_nothing(
    order: Order, seconds: float, every: float, make_world: MakeWorld, keys: Keys
) -> None:
    """One client sends each kind of request that vLLM answers with 500 twice a second. Engines are killed meanwhile."""
    world = await make_world(order, 2, 3, sim=ENGINES, keys=keys)
    world.allowed.stranded = world.allowed.expired = True
    world.allowed.orphan_tokens = 100_000
    tally = Tally()
    for engine in world.engines:
        counts = tally.decode if engine in world.decode else tally.prefill
        Watched.attach(engine, partial(_count, counts))
    ends = time.monotonic() + seconds
    await asyncio.gather(
        *(_bad(world, kind, tally, ends) for kind in KINDS),
        *(_other(world, number, tally, ends) for number in range(8)),
        _kill(world, every, tally, ends),
    )
    await world.warm()
    line = {"order": order, "seconds": seconds, "kills": len(tally.kills), "others": tally.others, "cut": tally.cut}
    costs = [(tally.decode.get(name, 0), tally.prefill.get(name, 0)) for name in _unstruck(tally)]
    print_line("evidence", {**line, "bad": len(tally.bad), "most": [max(each) for each in zip(*costs, strict=True)]})
    assert not tally.failed, tally.failed[:3]
    assert not tally.wrong, tally.wrong[:3]
    assert all(decode <= 2 and prefill <= 1 for decode, prefill in costs)
    assert len(costs) > 0.8 * len(tally.bad)
    errors = {cause: count for cause, count in (await world.state())["ejections"].items() if count and cause != "lost"}
    assert not errors, "healthy engines were ejected"


def _count(counts: dict[str, int], seen: Seen) -> None:
    raw = seen.raw
    begin = raw.find(MARK.encode())
    if begin >= 0 and b'"max_tokens":2147483647' not in raw:
        name = raw[begin : begin + 16].decode()
        counts[name] = counts.get(name, 0) + 1


def _unstruck(tally: Tally) -> list[str]:
    """The bad requests during which no engine was killed: a killed engine may cost a further attempt."""
    spans = [(at - 0.05, at + 0.2) for at in tally.kills]
    return [name for name, (began, ended) in tally.bad.items() if not any(a < ended and began < b for a, b in spans)]


async def _bad(world: World, kind: str, tally: Tally, ends: float) -> None:
    path, body, message = KINDS[kind]
    number = sorted(KINDS).index(kind)
    for index in itertools.count():
        if time.monotonic() >= ends:
            return
        name = f"{MARK}{number:02}-{index:09}"
        marked = {**body, "prompt": f"{name} {body.get('prompt')}"}
        if "messages" in body:
            marked = {**body, "messages": [{"role": "user", "content": f"{name} {body['messages'][0]['content']}"}]}
        began = time.monotonic()
        reply = await world.post(path, marked, {"Authorization": "Bearer bad"})
        tally.bad[name] = (began, time.monotonic())
        if (reply.status, reply.error["message"]) != (500, message):
            tally.wrong.append((kind, reply))
        await asyncio.sleep(max(0.0, began + PERIOD - time.monotonic()))


async def _other(world: World, number: int, tally: Tally, ends: float) -> None:
    shape = Shape(stream=bool(number % 2))
    for index in itertools.count():
        if time.monotonic() >= ends:
            return
        prompt, began = f"Another client {number} {index}. " * 10, time.monotonic()
        reply = await world.complete(shape, {"Authorization": "Bearer good"}, prompt=prompt, tokens=TOKENS)
        tally.others += 1
        if reply.status == 200 and not _broke(reply) and reply.text == shape.expected(prompt, TOKENS):
            continue
        struck = any(began < at < time.monotonic() for at in tally.kills)
        if struck and shape.stream and reply.status == 200 and _broke(reply):
            tally.cut += 1
        else:
            tally.failed.append((shape.label, reply))


def _broke(reply: Reply) -> bool:
    return reply.cut or b'"error"' in reply.raw


async def _kill(world: World, every: float, tally: Tally, ends: float) -> None:
    engines = itertools.cycle([world.decode[0], world.prefill[0], world.decode[1], world.prefill[1]])
    while time.monotonic() + every < ends:
        await asyncio.sleep(every / 2)
        engine = next(engines)
        tally.kills.append(time.monotonic())
        await engine.kill()
        await asyncio.sleep(DOWN)
        await engine.restart()
        await asyncio.sleep(max(0.0, every / 2 - DOWN))


@pytest.mark.parametrize(
    ("order", "seconds"),
    [
        pytest.param(Order.PREFILL_FIRST, 3.0, marks=pytest.mark.timeout(120), id="short"),
        *(pytest.param(order, 90.0, marks=SOAK, id=f"long-{order}") for order in Order),
    ],
)
async def test_a_limit_of_one_tenant_concerns_no_other(order: Order, seconds: float, make_world: MakeWorld) -> None:
    """Engines limit tenant A. B is measured alone, then beside A."""
    world = await make_world(order, 2, 2, sim=ENGINES)
    world.allowed.stranded = world.allowed.expired = True
    alone = await _ttfts(world, seconds)
    limited: list[SimEngine] = world.engines
    for engine in limited:
        Limiter(engine, "Bearer a", 429)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_tenant_a(world, stop))
        beside = await _ttfts(world, seconds)
        stop.set()
    ratio = _p99(beside) / _p99(alone)
    print_line(
        "tenants", {"order": order, "seconds": seconds, "requests": len(beside), "p99": [_p99(alone), _p99(beside)]}
    )
    if seconds > 60.0:
        assert ratio <= LONGEST_TTFT, ratio


async def _tenant_a(world: World, stop: asyncio.Event) -> None:
    while not stop.is_set():
        reply = await world.complete(headers={"Authorization": "Bearer a"}, prompt="A prompt of tenant A. " * 20)
        assert (reply.status, "retry-after" in reply.headers) == (429, True), reply
        await asyncio.sleep(0.1)


async def _ttfts(world: World, seconds: float) -> list[float]:
    """B's TTFTs. Every request must succeed."""
    found: list[float] = []
    ends = time.monotonic() + seconds

    async def client(number: int) -> None:
        while time.monotonic() < ends:
            prompt, began = f"B {number} {len(found)}. " * 20, time.monotonic()
            body = Shape(stream=True).body(prompt=prompt, tokens=TOKENS)
            world.sent += 1
            url, headers = f"{world.url}/v1/completions", {"Authorization": "Bearer b"}
            async with world.session.post(url, json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                await response.content.readany()
                found.append(time.monotonic() - began)
                assert b"[DONE]" in await response.content.read()
            await asyncio.sleep(0.05)

    clients: list[Coroutine[Any, Any, None]] = [client(number) for number in range(4)]
    await asyncio.gather(*clients)
    return found


def _p99(values: list[float]) -> float:
    return round(quantiles(values, n=100, method="inclusive")[98], 4)
