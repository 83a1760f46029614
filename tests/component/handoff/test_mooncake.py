"""Mooncake through the gateway: every order, and the settlement where a leg is missing."""

import argparse
import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Order, PrefillFailure, Role
from pdx_cli.commands.gateway import add_arguments, settings_of
from pdx_cli.errors import CommandError
from pdx_proxy.config.settings import Retries
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import PROMPT, SHAPES, SHORT, Shape, World, eventually, prompt_of
from tests.failure_matrix.row import LONG

MOONCAKE: dict[str, Any] = {"connector": "Mooncake"}
TEXT = Shape()
STREAM = Shape(chat=True, stream=True)


async def test_kv_moves(order: Order, shape: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order, **MOONCAKE)
    local, external = world.d.counts.prompt_tokens_local, world.d.counts.prompt_tokens_external
    assert (await world.complete(shape)).text == shape.expected()
    assert world.d.counts.prompt_tokens_local == local
    assert world.d.counts.prompt_tokens_external > external
    assert await world.outcomes() == {"split": 1}


@pytest.mark.parametrize("more", [{"max_tokens": 2**31 - 1}, {"prompt": "too long " * 2000}], ids=["by D", "by both"])
async def test_what_is_refused_leaves_no_place_at_p(order: Order, more: dict[str, Any], make_world: MakeWorld) -> None:
    """D notifies P of every leg that it refuses. P keeps at most 20 transfer IDs, each until its own leg has ended."""
    world = await make_world(order, **MOONCAKE)
    for _ in range(3):
        reply = await world.post(TEXT.path, {**TEXT.body(), **more})
        assert reply.status == 400
    assert (await world.complete(TEXT)).text == TEXT.expected()
    await eventually(lambda: not world.p.counts.registered_now and not world.p.counts.blocks_held_now, 3.0, "places")


async def test_a_p_whose_d_has_refused_is_left_to_finish(make_world: MakeWorld) -> None:
    """D has notified P of the ID: if P's leg is aborted, P keeps the ID for ever."""
    world = await make_world(Order.CONCURRENT, p={"prefill_base_seconds": 0.4}, deadlines=SHORT, **MOONCAKE)
    reply = await world.post(TEXT.path, {**TEXT.body(), "max_tokens": 2**31 - 1})
    assert reply.status == 400
    await eventually(lambda: world.p.counts.released == 1, 3.0, "P frees what D has refused")
    assert not world.p.counts.prefills_aborted


async def test_the_whole_requests_deadline_holds_while_p_goes_first(make_world: MakeWorld) -> None:
    deadlines = replace(LONG, total_seconds=0.3)
    world = await make_world(Order.PREFILL_FIRST, p={"prefill_base_seconds": 2.0}, deadlines=deadlines, **MOONCAKE)
    assert (await world.complete(TEXT)).status == 504
    await eventually(lambda: world.p.counts.prefills_aborted == 1, 5.0, "P is stopped")


async def test_a_full_p_gets_its_leg_again_under_the_id(make_world: MakeWorld) -> None:
    world = await make_world(Order.CONCURRENT, **MOONCAKE)
    world.fault(world.p, FaultKind.STATUS, status=503, count=1)
    assert (await world.complete(TEXT)).text == TEXT.expected()
    assert world.d.counts.load_failures == 0


async def test_a_p_that_is_full_again_gets_a_short_leg(make_world: MakeWorld) -> None:
    world = await make_world(Order.CONCURRENT, **MOONCAKE)
    world.fault(world.p, FaultKind.STATUS, status=503, count=2)
    assert (await world.complete(TEXT)).text == TEXT.expected()
    await eventually(lambda: not world.d.counts.blocks_held_now, 3.0, "D's blocks are free")
    assert not (await world.settlements()).get("decode_lost")


@pytest.mark.parametrize("failure", list(PrefillFailure))
async def test_a_notice_that_is_late_keeps_no_place(
    failure: PrefillFailure, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D notifies P of a closed leg without a stream although it has registered. P's leg must not end before that."""
    retries = Retries(on_prefill_failure=failure)
    world = await make_world(Order.CONCURRENT, deadlines=LONG, retries=retries, **MOONCAKE)
    channel = world.d.station.channel
    call = channel.call
    notices: list[Any] = []

    async def late(host: str, port: int, message: dict[str, Any]) -> Any:
        is_notice = message["op"] == "register" and not message["blocks"]
        await asyncio.sleep(0.3 if is_notice else 0.0)
        answer = await call(host, port, message)
        notices.extend([answer] if is_notice else [])
        return answer

    monkeypatch.setattr(channel, "call", late)
    world.fault(world.p, FaultKind.STATUS, status=503, count=2)
    assert (await world.complete(TEXT)).status == (503 if failure is PrefillFailure.FAIL else 200)
    await eventually(lambda: world.settled and notices, what="the hand-off is settled, and P is notified")
    assert await world.settlements() == {"finished": 1}
    assert not world.p.counts.registered_now


async def _queueing(world: World) -> "asyncio.Task[Any]":
    """Fill the only D with a request from outside, and let P answer 503 twice."""
    occupying = asyncio.create_task(world.direct(world.d, Shape(), max_tokens=60))
    await eventually(lambda: world.d.counts.running_now, what="D is full")
    world.fault(world.p, FaultKind.STATUS, status=503, count=2)
    return occupying


async def _keeps_no_place(world: World, occupying: "asyncio.Task[Any]") -> None:
    await occupying
    await eventually(lambda: world.settled, what="the hand-off is settled")
    assert await world.settlements() == {"finished": 1}
    assert (world.p.counts.released, world.p.counts.registered_now) == (1, 0)


ONE_BY_ONE: dict[str, Any] = {"max_running": 1, "decode_token_seconds": 0.02}


@pytest.mark.parametrize("form", [TEXT, STREAM], ids=lambda form: form.label)
@pytest.mark.parametrize("order", [Order.DECODE_FIRST, Order.CONCURRENT])
async def test_a_full_p_whose_d_only_queues_keeps_no_place(order: Order, form: Shape, make_world: MakeWorld) -> None:
    """D notifies P of a leg that is closed in D's queue. P would keep the ID until its timeout."""
    world = await make_world(order, d=ONE_BY_ONE, deadlines=LONG, **MOONCAKE)
    occupying = await _queueing(world)
    assert (await world.complete(form)).text == form.expected()
    assert (await world.outcomes(), world.report["retries"]) == ({"whole": 1}, {"status": 1})
    await _keeps_no_place(world, occupying)


@pytest.mark.parametrize("form", [TEXT, STREAM], ids=lambda form: form.label)
async def test_a_full_p_whose_client_has_its_error_keeps_no_place(form: Shape, make_world: MakeWorld) -> None:
    """The second leg only releases D, and is refused too."""
    fails = Retries(on_prefill_failure=PrefillFailure.FAIL)
    world = await make_world(Order.CONCURRENT, d=ONE_BY_ONE, deadlines=LONG, retries=fails, **MOONCAKE)
    occupying = await _queueing(world)
    assert (await world.complete(form)).status == 503
    await _keeps_no_place(world, occupying)


@pytest.mark.parametrize("form", [TEXT, STREAM], ids=lambda form: form.label)
async def test_a_p_that_refuses_while_d_queues_gets_no_further_leg(form: Shape, make_world: MakeWorld) -> None:
    world = await make_world(Order.CONCURRENT, d=ONE_BY_ONE, deadlines=LONG, **MOONCAKE)
    occupying = await _queueing(world)
    world.p.faults.clear()
    world.fault(world.p, FaultKind.STATUS, status=400, count=1)
    before = world.p.counts.requests.total()
    assert (await world.complete(form)).text == form.expected()
    await occupying
    await eventually(lambda: world.settled, what="the hand-off is settled")
    assert (await world.settlements(), world.p.counts.requests.total() - before) == ({"lease": 1}, 1)
    world.void = True  # P keeps the ID


async def test_p_is_recognised_on_a_new_connection(order: Order, make_world: MakeWorld) -> None:
    """With the identity of the old P, D would wait for minutes: nothing listens at the old worker's port."""
    world = await make_world(order, **MOONCAKE, deadlines=LONG)
    before = world.endpoint(world.p).identity
    await world.p.restart()
    assert (await world.complete(TEXT)).text == TEXT.expected()
    received = [seen.body for seen in world.d.seen if prompt_of(seen.body) == PROMPT]
    assert [body.get("kv_transfer_params") for body in received] == [None]  # a warm-up may have met the restart
    assert (await world.outcomes(), world.report["retries"]) == ({"whole": 1}, {"lost": 1})
    await world.warm()
    after = world.endpoint(world.p).identity
    assert before is not None
    assert after is not None
    assert after.engine_id == world.p.engine_id != before.engine_id


async def test_a_p_without_a_bootstrap_is_not_picked(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, **MOONCAKE, gateway=False)
    assert world.p._bootstrap is not None
    await world.p._bootstrap.close()
    await world.start_gateway(warm=False, deadlines=SHORT)
    await eventually(lambda: "its bootstrap" in str(world.endpoint(world.p).reason), 5.0, "the reason")
    assert (await world.complete(TEXT)).text == TEXT.expected()
    assert await world.outcomes() == {"whole": 1}


async def test_clients_that_leave_at_any_moment(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, 2, 2, sim={"prefill_token_seconds": 2e-5, "transfer_seconds": 0.01}, **MOONCAKE)
    rng = random.Random(7)

    async def leave(number: int) -> None:
        shape = SHAPES[number % len(SHAPES)]
        _, writer = await world.raw(shape.body(f"{number} {PROMPT}", tokens=20), shape.path)
        await asyncio.sleep(rng.uniform(0.0, 0.08))
        writer.transport.abort()

    for batch in range(4):
        await asyncio.gather(*(leave(batch * 10 + number) for number in range(10)))
    world.allowed.orphan_tokens = 40 * 20
    await eventually(lambda: world.report["inFlight"]["requests"] == 0, 5.0, "all have left")
    assert (await world.complete(STREAM)).text == STREAM.expected()


async def test_the_wrong_engine_is_killed_not_the_right_one(make_world: MakeWorld) -> None:
    """The gateway never does this: the simulator is as strict as vLLM's assertion."""
    world: World = await make_world(Order.CONCURRENT, **MOONCAKE, gateway=False)
    leg = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "x"}
    reply = await world.direct(world.d, TEXT, tokens=1, kv_transfer_params=leg, ignore_eos=True)
    assert (reply.status, world.d.dead, world.d.settings.role) == (500, True, Role.DECODE)


def _endpoints(*ports: str) -> list[int]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags = ["--prefill", "http://p:1", "http://q:1", "--decode", "http://d:1", "--connector", "Mooncake"]
    found = settings_of(parser.parse_args([*flags, "--identity-ports", *ports])).endpoints
    return [spec.identity_port for spec in found]


def test_the_flag() -> None:
    assert _endpoints("8998", "8999") == [8998, 8999, 0]
    with pytest.raises(CommandError, match="has 1 port; write one for each engine of --prefill"):
        _endpoints("8998")
    with pytest.raises(CommandError, match="0 is not a port"):
        _endpoints("8998", "0")
