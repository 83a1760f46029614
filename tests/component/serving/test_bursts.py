"""An SLO with simulated engines: requests go whole to D when P would be late; the limit of a D follows its TPOT."""

import asyncio

from pdx_api.names import Order
from pdx_proxy.config.settings import SLO
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.payload.prompt_blocks import PromptBlocks
from pdx_proxy.process.workers import LocalWorkers
from tests.component.conftest import MakeWorld
from tests.component.harness import PROMPT, Shape, World, eventually

STREAM = Shape(stream=True)


def serving_of(world: World) -> WorkerState:
    workers = world.gateway._workers
    assert isinstance(workers, LocalWorkers)
    return workers._worker._serving


async def learn(world: World) -> None:
    """Let the gateway compare the open streams until they have shown D's ITL."""
    serving = serving_of(world)
    await eventually(lambda: serving.counters.relays)
    while not serving.chooser.decodes._views:
        await asyncio.sleep(0.15)
        serving.apply_load(serving.load_reports)


async def test_requests_burst_to_d_when_every_p_would_be_late(make_world: MakeWorld, order: Order) -> None:
    slow, fast = {"prefill_base_seconds": 0.2}, {"decode_token_seconds": 4e-3}
    world = await make_world(order, 1, 1, p=slow, d=fast, slo=SLO(5000, 500))
    stream = asyncio.create_task(world.complete(STREAM, tokens=400))
    await learn(world)
    serving = serving_of(world)
    prefill = serving.chooser.prefills.expected.engine(world.endpoint(world.p).name)
    backlog = [prefill.sent(PromptBlocks([], [], 4_000), serving.engines.clock()) for _ in range(250)]
    burst = await world.complete(STREAM, prompt=f"First: {PROMPT}")
    for leg in backlog:
        leg.dropped()
    assert burst.text == STREAM.expected(f"First: {PROMPT}")
    assert (await stream).status == 200
    assert await world.outcomes() == {"whole": 1, "split": 1}
    report = world.report
    assert report["notSplit"]["burst"] == 1
    assert (await world.state())["notSplit"]["burst"] == 1
    assert not any(report["localPrefills"].values()), "a burst is no failed transfer"
    assert not any(report["retries"].values())


async def test_without_an_slo_every_request_waits_for_its_p(make_world: MakeWorld) -> None:
    world = await make_world(
        Order.PREFILL_FIRST, 1, 1, p={"prefill_base_seconds": 0.1}, d={"decode_token_seconds": 4e-3}
    )
    stream = asyncio.create_task(world.complete(STREAM, tokens=300))
    await learn(world)
    await asyncio.gather(*(world.complete(prompt=f"{number}: {PROMPT}") for number in range(6)))
    await stream
    assert await world.outcomes() == {"split": 7}
    assert world.report["decode"]["batches"] == {}


async def test_the_batch_of_a_d_follows_its_objective(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, 1, 1, d={"decode_token_seconds": 4e-3}, slo=SLO(0, 500))
    stream = asyncio.create_task(world.complete(STREAM, tokens=400))
    await learn(world)
    decode, serving = world.endpoint(world.d), serving_of(world)
    batch = serving.chooser.decodes.batch_limits()[decode.name]
    assert 4.0 <= serving.engines.load.limits[decode.name] <= max(batch, 4.0)
    page = (await world.call("GET", f"{world.admin}/metrics")).raw.decode()
    assert f'pdx_decode_itl_seconds{{endpoint="{decode.name}"}} 0.0' in page
    assert (await stream).status == 200
