"""Each metric changes with the event that it counts, and only then."""

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pdx_api.names import Order, Policy, PrefillFailure, Role
from pdx_api.settings.gateway import Choosing
from pdx_proxy.config.settings import Address, Deadlines, EndpointSpec, Limits, Retries, Settings
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.upstreams import create_engines
from pdx_proxy.handoff.settlements import Settlements
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually

STREAM = Shape(stream=True)
Series = dict[tuple[str, ...], float]


async def page(world: World) -> dict[str, Series]:
    """Return the samples that are not 0, by name and label values (sorted by the labels' names)."""
    text = (await world.call("GET", f"{world.admin}/metrics")).raw.decode()
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})
            if sample.value:
                found[sample.name][values] = sample.value
    return found


async def test_phases_choices_and_pieces(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order)
    streamed, whole, alone = await world.complete(STREAM, tokens=20), await world.complete(), await world.complete(n=2)
    assert {streamed.status, whole.status, alone.status} == {200}
    found = await page(world)
    assert found["pdx_phase_seconds_count"] == {
        ("to_prefill",): 2,
        ("prefill",): 2,
        ("handoff",): 1,  # streams only, like the next
        ("first_token",): 1,
        ("total",): 3,
    }
    sums = found["pdx_phase_seconds_sum"]
    assert sums["first_token",] < sums["total",]
    assert found["pdx_endpoint_selections_total"] == {("ExpectedWait", "prefill"): 2, ("LeastITL", "decode"): 3}
    assert 3 <= found["pdx_response_chunks_total"][()] <= len(streamed.events) + 3
    assert found["pdx_local_prefills_total"] == {}
    assert found["pdx_prefill_kv_pinned"] == {}
    assert list(found["pdx_build_info"].values()) == [1]


async def test_a_stream_is_counted_while_it_runs(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, d={"decode_token_seconds": 0.01})
    stream = asyncio.create_task(world.complete(STREAM, tokens=60))
    await eventually(lambda: world.report["chunks"] > 5)
    assert not stream.done()
    found = await page(world)
    assert (("first_token",) in found["pdx_phase_seconds_count"], found["pdx_requests_in_flight"]) == (True, {(): 1})
    await stream


async def test_the_wait_in_the_queue_is_part_of_the_first_token(make_world: MakeWorld) -> None:
    slow = {"decode_token_seconds": 0.01}
    world = await make_world(Order.PREFILL_FIRST, d=slow, limits=Limits(max_in_flight_per_decode=1))
    await asyncio.gather(*(world.complete(STREAM, tokens=20) for _ in range(2)))
    found = await page(world)
    sums = found["pdx_phase_seconds_sum"]
    assert found["pdx_phase_seconds_count"]["queue",] == 1
    assert sums["first_token",] > sums["queue",] > 0.1


async def test_which_policy_decided(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(
        order, choosing=Choosing(prefill_policy=Policy.PREFIX_AFFINITY, decode_policy=Policy.SESSION_AFFINITY)
    )
    await world.complete()
    await world.complete(headers={"x-session-id": "me"})
    assert (await page(world))["pdx_endpoint_selections_total"] == {
        ("PrefixAffinity", "prefill"): 2,
        ("SessionAffinity", "decode"): 1,
        ("LeastRequests", "decode"): 1,
    }


LOCAL = {
    "no_prefill": (None, PrefillFailure.RETRY),
    "failed": (FaultKind.DIE_BEFORE_HEAD, PrefillFailure.LOCAL),
    "refused": (FaultKind.STATUS, PrefillFailure.RETRY),
    "no_kv": (FaultKind.NO_PARAMS, PrefillFailure.RETRY),
}


@pytest.mark.parametrize("reason", LOCAL)
async def test_why_decode_prefilled(reason: str, make_world: MakeWorld) -> None:
    kind, policy = LOCAL[reason]
    retries = Retries(on_prefill_failure=policy)
    short = {"lease_seconds": 0.2}  # without parameters the blocks that P keeps cannot be freed
    world = await make_world(Order.PREFILL_FIRST, 0 if kind is None else 1, 1, sim=short, retries=retries)
    world.allowed.expired = True
    if kind is not None:
        world.fault(world.p, kind, **({"status": 400} if kind is FaultKind.STATUS else {}))
    assert (await world.complete()).text == Shape().expected()
    assert await world.outcomes() == {"whole": 1}
    assert (await page(world))["pdx_local_prefills_total"] == {(reason,): 1}
    await world.warm()


async def test_the_last_attempt_is_a_local_prefill(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, 2, 1, retries=Retries(attempts=2))
    for prefill in world.prefill:
        world.fault(prefill, FaultKind.DIE_BEFORE_HEAD)
    assert (await world.complete()).status == 200
    found = await page(world)
    assert (found["pdx_local_prefills_total"], found["pdx_retries_total"]) == ({("failed",): 1}, {("lost",): 1})


async def test_what_nobody_could_split_is_no_local_prefill(make_world: MakeWorld) -> None:
    """Not for clients that request it, for refusals that D repeats, or for aggregated engines."""
    world = await make_world(Order.PREFILL_FIRST)
    assert (await world.complete(n=2)).status == 200
    assert (await world.complete(tokens=0)).status == 400
    alone = await make_world(Order.PREFILL_FIRST, 0, 1, sim={"role": Role.AGGREGATED}, d={"role": Role.AGGREGATED})
    assert (await alone.complete()).status == 200
    for each in (world, alone):
        assert (await page(each))["pdx_local_prefills_total"] == {}


async def test_kv_is_held_until_decode_has_it(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, p={"transfer_seconds": 1.5}, d={"transfer_seconds": 1.5})
    name = world.endpoint(world.p).name
    tasks = [asyncio.create_task(world.complete(STREAM)) for _ in range(2)]
    await eventually(lambda: world.report["held"] == {name: 2})
    assert (await page(world))["pdx_prefill_kv_pinned"] == {(name,): 2}
    await asyncio.gather(*tasks)
    assert world.report["held"] == {}


@pytest.mark.parametrize(
    ("connector", "order", "seconds"),
    [("NIXL", Order.PREFILL_FIRST, 12), ("NIXL", Order.CONCURRENT, 12), ("Mooncake", Order.CONCURRENT, 480)],
)
async def test_a_lease_is_the_connectors_own(
    connector: str, order: Order, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = WorkerState(create_engines(Settings(deadlines=Deadlines(handoff_seconds=7)), lambda _: None))
    prefill = Endpoint(EndpointSpec(Address("p", 1), Role.PREFILL, connector=connector, order=order))
    serving.counters.pin(prefill.name)
    timers: list[tuple[Any, ...]] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *timer: timers.append(timer))
    Settlements(serving).unpin(prefill, expires=True)
    assert serving.counters.pinned == {prefill.name: 1}
    ((after, unpin, *arguments),) = timers
    unpin(*arguments)
    assert (after, serving.counters.pinned) == (seconds, {})
