"""Retries have a budget: engines that fail every request get hardly more requests than clients send."""

import asyncio

import pytest

from pdx_api.names import Order, PrefillFailure
from pdx_proxy.config.settings import Retries
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, eventually

REQUESTS = 40


async def test_failures_become_no_storm(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, 2, 1, sim={"lease_seconds": 0.4}, retries=Retries(min_retries=3, budget_percent=10))
    world.allowed.stranded = world.allowed.expired = True
    for engine in world.engines:
        engine.faults.add(FaultKind.STATUS, count=None, status=503)
    replies = [await world.complete(Shape(stream=bool(number % 2))) for number in range(REQUESTS)]
    assert {(reply.status, reply.error["message"]) for reply in replies} == {(503, "simulated fault")}
    report = world.report
    most = 3 + REQUESTS // 10
    assert report["outcomes"]["unavailable"] == REQUESTS
    assert REQUESTS <= sum(report["retries"].values()) <= REQUESTS + most
    assert report["retriesRefused"] >= REQUESTS - most
    page = (await world.call("GET", f"{world.admin}/metrics")).raw.decode()
    assert f"pdx_retries_refused_total {float(world.report['retriesRefused'])}" in page
    for engine in world.engines:
        engine.faults.clear()
    await world.warm()
    assert (await world.complete()).text == Shape().expected()


async def test_a_refusal_of_the_request_needs_no_budget(order: Order, make_world: MakeWorld) -> None:
    """After a 4xx to a leg, D gets the whole request: that is no retry."""
    world = await make_world(order, retries=Retries(min_retries=0, budget_percent=0))
    replies = await asyncio.gather(*(world.complete(max_tokens=100_000, tokens=1) for _ in range(5)))
    assert {reply.status for reply in replies} == {400}
    assert world.report["retriesRefused"] == 0


async def test_an_engine_that_is_not_there_needs_no_budget(order: Order, make_world: MakeWorld) -> None:
    """When an engine dies, all its requests fail at once, and no engine has worked on them."""
    world = await make_world(order, 2, 1, retries=Retries(min_retries=0, budget_percent=0))
    world.allowed.stranded = True
    await world.p.kill()
    replies = await asyncio.gather(*(world.complete(prompt=str(number)) for number in range(8)))
    assert [reply.text for reply in replies] == [Shape().expected(str(number)) for number in range(8)]
    assert world.report["retries"].keys() == {"connect"}
    assert world.report["retriesRefused"] == 0


async def test_a_prefill_that_dies_costs_a_retry_for_each_request(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, p={"prefill_base_seconds": 0.5}, retries=Retries(min_retries=5, budget_percent=0))
    world.allowed.stranded = True
    # No more than engines get before their first report.
    tasks = [asyncio.create_task(world.complete(prompt=str(number))) for number in range(4)]
    legs = world.p.counts.legs["prefill"]
    await eventually(lambda: world.p.counts.legs["prefill"] == legs + 4)
    await world.p.kill()
    replies = await asyncio.gather(*tasks)
    assert [reply.text for reply in replies] == [Shape().expected(str(number)) for number in range(4)]
    assert world.report["retries"] == {"lost": 4}
    assert world.report["retriesRefused"] == 0
    await world.p.restart()
    await world.warm()


@pytest.mark.parametrize("policy", PrefillFailure)
async def test_one_attempt_is_one(policy: PrefillFailure, order: Order, make_world: MakeWorld) -> None:
    retries = Retries(on_prefill_failure=policy, attempts=1)
    world = await make_world(order, sim={"lease_seconds": 0.4}, retries=retries)
    world.allowed.stranded = world.allowed.expired = True
    assert (await world.complete()).text == Shape().expected()
    assert await world.outcomes() == {"split": 1}
    world.fault(world.p, FaultKind.STATUS, count=None, status=500)
    reply = await world.complete()
    assert (reply.status, reply.error["message"]) == (500, "simulated fault")
    assert sum(world.report["retries"].values()) == 1
