"""Requests that kill engines: how many, and what others notice. See docs/failures.md."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from pdx_api.names import Order, PrefillFailure, Role
from pdx_api.settings.gateway import Keys
from pdx_proxy.config.settings import Limits, Retries
from tests.component.conftest import MakeWorld
from tests.component.deadly import WORD, Mine, Way, send_ordinary
from tests.component.harness import Reply, Shape, World, eventually

KILLER: Final = {"Authorization": "Bearer killer-key"}
OTHER: Final = {"Authorization": "Bearer other-key"}
NAMES: Final = ("killer", "other", "accomplice")
WHOLE: Final = Shape()
BUDGET: Final = Retries(min_retries=1000)
"""Not what limits the deaths."""


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    lines = (f"sha256:{sha256(f'{name}-key'.encode()).hexdigest()} {name}\n" for name in NAMES)
    (tmp_path / "clients").write_text("".join(lines))
    return Keys(clients=str(tmp_path / "clients"))


async def _world(make_world: MakeWorld, order: Order, *numbers: int, **more: Any) -> World:
    world = await make_world(order, *(numbers or (3, 3)), **{"retries": BUDGET, **more})
    world.allowed.stranded = world.allowed.expired = True
    world.allowed.orphan_tokens = 10_000
    return world


def _is_final(reply: Reply) -> bool:
    """Whether the answer says that the request must not be sent again."""
    final = "It is not tried again" in reply.error["message"]
    return reply.status == 500 and final and "retry-after" not in reply.headers


async def _kill(world: World, shape: Shape = WHOLE, name: str = "", headers: dict[str, str] | None = None) -> Reply:
    return await world.complete(shape, headers or KILLER, prompt=f"{WORD} {name}", tokens=40)


async def _end(world: World, mine: Mine) -> None:
    """Every engine comes back, and P's keep nothing for D's that died."""
    await mine.over()
    await world.warm()
    for engine in world.engines:
        engine.end_leases()


def _ways() -> Iterator[Any]:
    """`make test` runs one way with streams and the others without; `make soak` runs all."""
    for way, stream in product((Way.RESET, Way.CORE, Way.FIRST_500, Way.LATE), (False, True)):
        if (way, stream) != (Way.LATE, True):  # its first event may be earlier
            often = stream is (way is Way.CORE) and way is not Way.LATE
            label = f"{way}-{'stream' if stream else 'whole'}"
            yield pytest.param(way, stream, marks=() if often else pytest.mark.soak, id=label)


@pytest.mark.parametrize(("way", "stream"), list(_ways()))
async def test_one_request_kills_two_engines(
    way: Way, stream: bool, order: Order, make_world: MakeWorld, keys: Keys
) -> None:
    retries = Retries() if way is Way.RESET else BUDGET
    world = await _world(make_world, order, keys=keys, p={"prefill_base_seconds": 0.02}, retries=retries)
    mine = Mine(world, way)
    reply = await _kill(world, Shape(stream=stream))
    assert _is_final(reply), reply
    assert len(mine.deaths) == 2, mine.deaths
    assert min(mine.least.values()) == 2, "one of each role"
    await send_ordinary(world, 200 if way is Way.RESET else 20, OTHER)
    assert len(mine.deaths) == 2, mine.deaths
    await _end(world, mine)


@pytest.mark.parametrize(
    "policy",
    [
        PrefillFailure.FAIL,
        *(pytest.param(p, marks=pytest.mark.soak) for p in (PrefillFailure.RETRY, PrefillFailure.LOCAL)),
    ],
)
async def test_two_engines_with_each_policy(
    policy: PrefillFailure, order: Order, make_world: MakeWorld, keys: Keys
) -> None:
    """With Fail, the client gets the error of a P that has died at once."""
    world = await _world(make_world, order, keys=keys, retries=replace(BUDGET, on_prefill_failure=policy, attempts=5))
    mine = Mine(world, Way.RESET)
    assert (await _kill(world)).status >= 500
    assert 1 <= len(mine.deaths) <= 2, mine.deaths
    await send_ordinary(world, 20, OTHER)
    await _end(world, mine)


@pytest.mark.parametrize("way", [Way.RESET, pytest.param(Way.FIRST_500, marks=pytest.mark.soak)])
async def test_only_prefill_engines_die(way: Way, order: Order, make_world: MakeWorld, keys: Keys) -> None:
    """One P dies, and a D serves the request whole. The same body kills no third P."""
    world = await _world(make_world, order, keys=keys)
    mine = Mine(world, way, (Role.PREFILL,))
    assert (await _kill(world)).status == 200
    second = await _kill(world)
    assert second.status == 200 or _is_final(second), second  # it is isolated at the latest when it has its answer
    assert len(mine.deaths) == 2, mine.deaths
    await eventually(lambda: world.worker._isolation.active, 5.0, "isolated")
    assert (await _kill(world)).status == 500
    assert (await _kill(world, name="another body")).status == 503
    assert len(mine.deaths) == 2, mine.deaths
    await _end(world, mine)


@pytest.mark.parametrize("way", [Way.RESET, pytest.param(Way.FIRST_500, marks=pytest.mark.soak)])
async def test_only_decode_engines_die(way: Way, order: Order, make_world: MakeWorld, keys: Keys) -> None:
    """One D dies, and a P serves the request whole. The same body kills no third D."""
    world = await _world(make_world, order, keys=keys)
    mine = Mine(world, way, (Role.DECODE,))
    assert (await _kill(world)).text == Shape().expected(f"{WORD} ", 40)
    second = await _kill(world)
    assert second.status == 200 or _is_final(second), second
    assert len(mine.deaths) == 2, mine.deaths
    await eventually(lambda: world.worker._isolation.active, 5.0, "isolated")
    assert (await _kill(world)).status == 500
    assert len(mine.deaths) == 2, mine.deaths
    await send_ordinary(world, 20, OTHER)
    await _end(world, mine)


async def test_engines_that_die_behind_the_first_event(order: Order, make_world: MakeWorld, keys: Keys) -> None:
    """Each request kills one D. The same body kills no third one."""
    world = await _world(make_world, order, keys=keys, d={"decode_token_seconds": 0.02})
    mine = Mine(world, Way.AFTER_EVENT, (Role.DECODE,))
    shape = Shape(stream=True)
    for number in (1, 2):
        reply = await _kill(world, shape)
        assert (reply.status, reply.chunks[-1]["error"]["code"]) == (200, 500)
        assert len(mine.deaths) == number, mine.deaths
        await eventually(lambda: world.settled, 5.0, "settled")
    await eventually(lambda: world.worker._isolation.active, 5.0, "isolated")
    assert (await _kill(world, shape)).status == 500
    assert len(mine.deaths) == 2, mine.deaths
    await send_ordinary(world, 20, OTHER)
    await _end(world, mine)


async def test_they_are_ascribed_to_the_client_behind_a_proxy(make_world: MakeWorld) -> None:
    limits = Limits(trusted_proxies=("127.0.0.0/8",))
    world = await _world(make_world, Order.PREFILL_FIRST, limits=limits, d={"decode_token_seconds": 0.02})
    mine = Mine(world, Way.AFTER_EVENT, (Role.DECODE,))
    for number in range(20):
        await send_ordinary(world, 1, {"X-Forwarded-For": f"10.0.0.{number}"})
    killer, shape = {"X-Forwarded-For": "10.1.1.1"}, Shape(stream=True)
    for number in (1, 2):
        await _kill(world, shape, headers=killer)
        assert len(mine.deaths) == number, mine.deaths
        await eventually(lambda: world.settled, 5.0, "settled")
    await eventually(lambda: world.worker._isolation.active, 5.0, "isolated")
    assert (await _kill(world, shape, headers=killer)).status == 500
    assert len(mine.deaths) == 2, mine.deaths
    await send_ordinary(world, 20, {"X-Forwarded-For": "10.0.0.1"})
    await _end(world, mine)


@pytest.mark.parametrize("order", [Order.DECODE_FIRST, Order.CONCURRENT])
async def test_a_prefill_that_died_does_not_get_its_leg_again(order: Order, make_world: MakeWorld, keys: Keys) -> None:
    """Its process still accepts connections."""
    world = await _world(make_world, order, keys=keys)
    mine = Mine(world, Way.CORE, (Role.PREFILL,))
    await _kill(world)
    assert [sum(WORD.encode() in seen.raw for seen in p.seen) for p in world.prefill].count(1) == 1
    assert len(mine.deaths) == 1, mine.deaths
    await _end(world, mine)


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.soak), True])
async def test_a_client_that_leaves_at_once(stream: bool, order: Order, make_world: MakeWorld, keys: Keys) -> None:
    """It leaves before engines die of its request. Ordinary requests then find out that they died."""
    world = await _world(make_world, order, keys=keys, p={"prefill_base_seconds": 0.05})
    mine = Mine(world, Way.LATE, restart=2.0)
    body = Shape(stream=stream).body(prompt=WORD, tokens=40)
    for _ in range(4):
        _, writer = await world.raw(body, head="Authorization: Bearer killer-key\r\n")
        await asyncio.sleep(0.005)
        writer.transport.abort()
        await eventually(lambda: world.settled, 5.0, "settled")
        await send_ordinary(world, 30, OTHER)
        if world.worker._isolation.active:
            break
    assert len(mine.deaths) <= 3, mine.deaths
    before = len(mine.deaths)
    assert (await _kill(world, Shape(stream=stream), name="another body")).status == 503
    assert len(mine.deaths) == before, mine.deaths
    await _end(world, mine)


async def test_a_pool(make_world: MakeWorld, keys: Keys, tmp_path: Path) -> None:
    world = await _world(make_world, Order.PREFILL_FIRST, keys=keys, storage=tmp_path / "pool")
    mine = Mine(world, Way.RESET)
    assert _is_final(await _kill(world))
    assert len(mine.deaths) == 2, mine.deaths
    await send_ordinary(world, 20, OTHER)
    await _end(world, mine)


async def test_aggregated_engines(make_world: MakeWorld, keys: Keys) -> None:
    whole = {"role": Role.AGGREGATED}
    world = await _world(make_world, Order.PREFILL_FIRST, 0, 4, keys=keys, sim=whole, d=whole)
    mine = Mine(world, Way.CORE)
    assert _is_final(await _kill(world, Shape(stream=True)))
    assert len(mine.deaths) == 2, mine.deaths
    await send_ordinary(world, 20, OTHER)
    await _end(world, mine)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.soak)])
async def test_ten_in_a_row_leave_each_role_an_engine(
    workers: int, order: Order, make_world: MakeWorld, keys: Keys
) -> None:
    """Each has a new body. From the second on, the client may use only the engines that the first one killed."""
    world = await _world(make_world, order, keys=keys, workers=workers)
    mine = Mine(world, Way.RESET, restart=0.5)
    replies = []
    for number in range(10):
        replies.append(await _kill(world, Shape(stream=bool(number % 2)), str(number)))
        await send_ordinary(world, 4, OTHER, at_once=2)
        await asyncio.sleep(0.1)
    assert {reply.status for reply in replies} <= {500, 503}, replies
    assert {reply.headers.get("retry-after") is None for reply in replies if reply.status == 503} == {False}
    assert len(set(mine.deaths)) == 2, mine.deaths
    assert min(mine.least.values()) >= 1, mine.least
    await send_ordinary(world, 20, OTHER)
    await _end(world, mine)


async def test_ten_at_once(order: Order, make_world: MakeWorld, keys: Keys) -> None:
    """All of them are on engines before the first one dies."""
    world = await _world(make_world, order, keys=keys)
    mine = Mine(world, Way.RESET, restart=0.3)
    replies = await asyncio.gather(*(_kill(world, name=str(number)) for number in range(10)))
    assert {reply.status for reply in replies} <= {500, 503}, replies
    await _end(world, mine)
    await send_ordinary(world, 20, OTHER)
    before = len(mine.deaths)
    assert (await _kill(world)).status in (500, 503)
    assert set(mine.deaths[before:]) <= set(mine.deaths[:before])
    await _end(world, mine)


async def test_another_key_is_another_client(make_world: MakeWorld, keys: Keys) -> None:
    """The same body with another key kills two engines more, and then both clients are isolated."""
    world = await _world(make_world, Order.PREFILL_FIRST, keys=keys)
    mine = Mine(world, Way.RESET, restart=2.0)
    accomplice = {"x-api-key": "accomplice-key"}
    for headers in (KILLER, accomplice):
        assert _is_final(await _kill(world, headers=headers))
    for headers in (KILLER, accomplice):
        assert (await _kill(world, headers=headers)).status == 500
        assert (await _kill(world, name="another body", headers=headers)).status == 503
    assert len(mine.deaths) == 4, mine.deaths
    await send_ordinary(world, 20, OTHER)
    await _end(world, mine)


@pytest.mark.parametrize("workers", [1, 2])
async def test_an_ingress_is_not_restricted(workers: int, make_world: MakeWorld) -> None:
    """All clients have one address: its body is refused, and all others of this address go on."""
    world = await _world(make_world, Order.PREFILL_FIRST, workers=workers)
    mine = Mine(world, Way.RESET)
    await send_ordinary(world, 20)
    assert _is_final(await _kill(world, headers={"x-request-id": "1"}))
    await send_ordinary(world, 200)
    assert (await _kill(world, headers={"x-request-id": "2"})).status == 500
    assert len(mine.deaths) == 2, mine.deaths
    await _end(world, mine)


async def test_an_address_among_many_is_restricted(make_world: MakeWorld) -> None:
    limits = Limits(trusted_proxies=("127.0.0.0/8",))
    world = await _world(make_world, Order.PREFILL_FIRST, limits=limits)
    mine = Mine(world, Way.RESET)
    for number in range(20):
        await send_ordinary(world, 1, {"X-Forwarded-For": f"10.0.0.{number}"})
    killer = {"X-Forwarded-For": "10.1.1.1"}
    assert _is_final(await _kill(world, headers=killer))
    assert (await world.complete(Shape(), killer)).status == 503
    await send_ordinary(world, 20, {"X-Forwarded-For": "10.0.0.1"})
    assert len(mine.deaths) == 2, mine.deaths
    await _end(world, mine)


async def test_a_restricted_client_uses_its_engines_one_request_at_a_time(make_world: MakeWorld, keys: Keys) -> None:
    world = await _world(make_world, Order.PREFILL_FIRST, keys=keys, d={"decode_token_seconds": 0.02})
    mine = Mine(world, Way.RESET, restart=0.2)
    assert _is_final(await _kill(world))
    await _end(world, mine)
    before = {engine: engine.counts.legs.total() for engine in world.engines}
    replies = await asyncio.gather(*(world.complete(Shape(), KILLER) for _ in range(3)))
    assert sorted(reply.status for reply in replies) == [200, 503, 503]
    used = {mine.name_of(engine) for engine in world.engines if engine.counts.legs.total() > before[engine]}
    assert used <= set(mine.deaths)
    assert (await world.complete(Shape(), KILLER)).status == 200
    page = (await world.call("GET", f"{world.admin}/metrics")).raw.decode()
    assert 'pdx_requests_quarantined_total{reason="client"} 2.0' in page
