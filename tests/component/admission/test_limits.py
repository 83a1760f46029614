"""Limits where the work is: per endpoint, until a hand-off is settled, and fair between clients."""

import asyncio

import pytest

from pdx_api.names import Order
from pdx_proxy.config.settings import Limits
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import PROMPT, Reply, Shape, World, eventually, request_of


async def test_a_decode_runs_what_it_can_and_its_queue_is_short(make_world: MakeWorld) -> None:
    """Without any setting, although the engine does not publish how many requests it runs at a time."""
    most = 8
    world = await make_world(Order.PREFILL_FIRST, d={"max_running": most, "decode_token_seconds": 0.02})
    tasks = [asyncio.create_task(world.complete(prompt=f"{number} {PROMPT}", tokens=40)) for number in range(60)]
    running: list[int] = []
    queued: list[int] = []
    while sum(task.done() for task in tasks) < len(tasks) - 2 * most:
        counts = world.d.counts
        queued.append(counts.running_now + counts.waiting_now - counts.loading_now - most)
        if running or counts.running_now == most:
            running.append(counts.running_now)
        await asyncio.sleep(0.02)
    assert {reply.status for reply in await asyncio.gather(*tasks)} == {200}
    assert max(queued) <= 2 * most, "once, while its limit doubles"
    assert max(queued[len(queued) // 2 :]) <= 4
    assert sum(running) / len(running) >= 0.9 * most, "a busy machine lets it idle at times"


async def test_a_prefill_has_a_limit_of_its_own(make_world: MakeWorld) -> None:
    """One P for two D's: what D's have room for does not fill P."""
    slow = {"prefill_base_seconds": 0.05, "prefill_slots": 1}
    limits = Limits(max_in_flight_per_prefill=2)
    world = await make_world(Order.PREFILL_FIRST, decode=2, p=slow, limits=limits)
    tasks = [asyncio.create_task(world.complete(prompt=f"{number} {PROMPT}", tokens=2)) for number in range(12)]
    legs: list[int] = []
    while not all(task.done() for task in tasks):
        legs.append(world.p.counts.running_now + world.p.counts.waiting_now)
        await asyncio.sleep(0.005)
    assert {reply.status for reply in await asyncio.gather(*tasks)} == {200}
    assert max(legs) == 2


async def test_a_client_with_one_request_does_not_wait_for_those_of_another(make_world: MakeWorld) -> None:
    """While a saturates D, b sends one request at a time: it waits for one duration of a request at most."""
    most = 4
    world = await make_world(
        Order.PREFILL_FIRST,
        d={"max_running": most, "decode_token_seconds": 0.02},
        limits=Limits(trusted_proxies=("127.0.0.0/8",)),
    )
    done = 0

    async def one(client: str) -> Reply:
        nonlocal done
        reply = await world.complete(tokens=20, headers={"X-Forwarded-For": f"6.6.6.6, {client}"})
        done += 1
        return reply

    others = [asyncio.create_task(one("192.0.2.1")) for _ in range(48)]
    await eventually(lambda: done >= 2 * most and world.report["inFlight"]["queued"])
    passed: list[int] = []
    for _ in range(2):
        before = done
        assert (await one("192.0.2.2")).status == 200
        passed.append(done - before)
    assert max(passed) <= 3 * most, "of 48 requests that came before"
    assert {reply.status for reply in await asyncio.gather(*others)} == {200}


async def test_a_client_that_left_holds_its_slot_until_all_is_settled(make_world: MakeWorld) -> None:
    """In push orders P goes on. So do the request's slot, its client's open request and the bytes of its body."""
    world = await make_world(
        Order.CONCURRENT, p={"prefill_base_seconds": 0.6}, limits=Limits(max_requests_per_client=1)
    )
    _, writer = await world.raw(Shape().body())
    await eventually(lambda: world.p.counts.running_now)
    usage = world.worker._admission.usage
    writer.close()
    await eventually(lambda: not world.report["inFlight"]["requests"])
    assert (usage.in_flight, world.report["inFlight"]["settling"]) == (1, 1)
    assert usage.buffered > len(PROMPT)
    assert (await world.complete()).status == 429
    await eventually(lambda: not usage.in_flight)
    assert (usage.buffered, world.report["inFlight"]["settling"]) == (0, 0)
    assert (await world.complete()).status == 200


async def test_a_body_that_does_not_come_holds_nothing(make_world: MakeWorld) -> None:
    limits = Limits(max_in_flight_per_decode=1, max_buffered_bytes=1 << 20, max_requests=0)
    world = await make_world(Order.PREFILL_FIRST, limits=limits)
    listen = world.gateway.listen
    writers: list[asyncio.StreamWriter] = []
    for _ in range(3):
        _, writer = await asyncio.open_connection(listen.host, listen.port)
        head = request_of({}).partition(b"Content-Length")[0]
        writer.write(head + b"Content-Length: 900000\r\n\r\n" + b"x" * 1000)
        writers.append(writer)
        world.sent += 1
    await eventually(lambda: _buffered(world) == 3000)
    assert world.report["inFlight"]["requests"] == 3
    assert (await world.complete()).status == 200
    for writer in writers:
        writer.close()
    await eventually(lambda: not _buffered(world))


def _buffered(world: World) -> int:
    return world.worker._admission.usage.buffered


async def test_a_leg_that_waits_for_its_prefill_has_not_reached_its_decode(make_world: MakeWorld) -> None:
    """The gateway counts it at D, where it will run, and counts those apart that a P prefills."""
    world = await make_world(Order.PREFILL_FIRST, p={"prefill_base_seconds": 0.5})
    task = asyncio.create_task(world.complete(prompt=PROMPT, tokens=2))
    d = world.endpoint(world.d).name
    await eventually(lambda: world.report["prefilling"] == {d: 1} and world.report["legs"].get(d) == 1)
    assert (await task).status == 200
    assert not world.report["prefilling"]
    world.p.faults.add(FaultKind.STATUS, status=500)
    assert (await world.complete(prompt=PROMPT, tokens=2)).status == 200
    assert not world.report["prefilling"], "P has failed"


CLIENT, OTHER = "192.0.2.1", "9.9.9.9"
LINES = {
    "one": (f"X-Forwarded-For: {OTHER}, {CLIENT}\r\n",),
    "two": (f"X-Forwarded-For: {OTHER}\r\n", f"X-Forwarded-For: {CLIENT}\r\n"),
    "three in any case": (
        f"x-forwarded-for: {CLIENT}\r\n",
        f"X-FORWARDED-FOR: {OTHER}\r\n",
        f"x-Forwarded-for:{CLIENT}\r\n",
    ),
    "lists": (f"X-Forwarded-For: {OTHER}, {OTHER}\r\n", f"X-Forwarded-For: {OTHER},{CLIENT}\r\n"),
    "behind two proxies": (
        f"X-Forwarded-For: {OTHER}\r\n",
        f"X-Forwarded-For: {CLIENT}\r\n",
        "X-Forwarded-For: 127.0.0.9\r\n",
    ),
    "many": (*(f"X-Forwarded-For: 9.9.9.{number}\r\n" for number in range(90)), f"X-Forwarded-For: {CLIENT}\r\n"),
}


@pytest.mark.parametrize("server", ["", "Accept: a\r\nAccept: b\r\n"], ids=["fast path", "fallback"])
@pytest.mark.parametrize("kind", LINES)
async def test_lines_of_a_client_s_own_do_not_hide_it(kind: str, server: str, make_world: MakeWorld) -> None:
    """Its proxy appends a line with its address, rather than to the client's own line."""
    limits = Limits(max_requests_per_client=1, trusted_proxies=("127.0.0.0/8",))
    world = await make_world(Order.PREFILL_FIRST, p={"prefill_base_seconds": 0.6}, limits=limits)
    _, first = await world.raw(Shape().body(), head=f"X-Forwarded-For: {CLIENT}\r\n")
    await eventually(lambda: world.p.counts.running_now)
    head = f"{LINES[kind][0]}X-Between: 1\r\n{''.join(LINES[kind][1:])}{server}Connection: close\r\n"
    reader, second = await world.raw(Shape().body(), head=head)
    assert (await reader.read()).startswith(b"HTTP/1.1 429 ")
    for writer in (first, second):
        writer.close()
