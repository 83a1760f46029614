"""Where the time went, with simulated engines whose times are set: each phase within 5 %, in virtual time."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.bench.virtual_time import run_virtually
from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Choosing
from pdx_cli.bench.analysis.phases import TO_FIRST_TOKEN, Phase, adds_up
from pdx_cli.bench.analysis.steps import Slo, StepResult
from pdx_cli.bench.load.connection import Server
from pdx_cli.bench.load.generator import Shape
from pdx_cli.bench.load.traces import Request, Trace
from pdx_cli.bench.load.workload import Traced
from pdx_cli.bench.measure import ArmRun, Observer, Plan
from pdx_cli.bench.targets import by_url
from pdx_proxy.config.settings import Limits
from pdx_sim import SimSettings
from tests.component.cli.programs import TEST_SECONDS
from tests.component.harness import World

pytestmark = pytest.mark.timeout(TEST_SECONDS)
PROMPT, ANSWER = 2000, 8
STEP, TOKEN, LINK = 0.02, 1e-4, 4.0
"""Seconds of a step and of each prompt token in it; GB/s."""
PREFILL = STEP + PROMPT * TOKEN
TRANSFER = PROMPT * (128 << 10) / (LINK * 1e9)
GAP = 0.1
"""Requests come in pairs: the second so many seconds after the first, which P prefills for longer."""
WAIT = PREFILL - GAP
ENGINES = SimSettings(
    step_seconds=STEP, step_token_seconds=TOKEN, engine_gigabytes_per_second=LINK, max_num_batched_tokens=4096
)
SECONDS = 20.0
SPLIT = {
    Phase.PREFILL: PREFILL,
    Phase.QUEUE: WAIT / 2,
    Phase.TRANSFER: TRANSFER,
    Phase.FIRST_STEP: STEP + TOKEN,
    Phase.DECODE: (ANSWER - 1) * STEP,
}


def pairs(prompts: tuple[int, int], answer: int = ANSWER) -> Traced:
    """Two requests every two seconds."""

    def requests() -> Iterator[Request]:
        for index in range(2 * int(SECONDS)):
            at = index // 2 * 2.0 + index % 2 * GAP
            prompt = prompts[index % 2]
            yield Request(index, at, prompt, answer, ((-1 - index, prompt),))

    return Traced(Trace("pairs", tuple(requests())))


async def measured(
    load: Traced,
    order: Order = Order.PREFILL_FIRST,
    roles: tuple[Role, ...] = (Role.PREFILL, Role.DECODE),
    decode: Mapping[str, Any] = {},
    **gateway: Any,
) -> StepResult:
    """One step through a gateway."""
    world = World(order)
    try:
        sims = [replace(ENGINES, role=role, order=order, **(decode if role is Role.DECODE else {})) for role in roles]
        await world.start_engines(
            [each for each in sims if each.role is Role.PREFILL],
            [each for each in sims if each.role is not Role.PREFILL],
        )
        await world.start_gateway(debug_headers=gateway.pop("debug_headers", True), **gateway)
        plan = Plan(load, Slo(5.0, 1.0), SECONDS, 4.0, 1, 0, (load.trace.rate,))
        observer = Observer(lambda *_: None, lambda *_: None)
        async with by_url(world.url, world.admin) as target:
            run = ArmRun(target.arm, Server.of(world.url), Shape("sim"), target.meters, plan, observer, 1.0)
            run.clock = asyncio.get_running_loop().time
            await run.run()
        [step] = run.steps
        assert (step.good, step.failures) == (step.count, {})
        return step
    finally:
        await world.close()


def check(step: StepResult, expected: Mapping[Phase, float]) -> None:
    """Each phase within 5 % of what the engines were set to; all within 2 % or 2 ms of what the client measured."""
    for phase, seconds in expected.items():
        assert step.phases[phase] == pytest.approx(seconds, rel=0.05), (phase, step.phases)
    assert adds_up(step.phases)
    whole = sum(step.phases[phase] for phase in TO_FIRST_TOKEN)
    assert whole == pytest.approx(step.ttft.mean, rel=0.02, abs=0.002)
    explained = sum(step.phases[phase] for phase in expected if phase in TO_FIRST_TOKEN)
    assert explained == pytest.approx(step.ttft.mean, rel=0.02, abs=0.002), step.phases


@pytest.mark.parametrize("debug_headers", [True, False], ids=["each request's header", "the gateway's histograms"])
def test_every_phase_of_a_pair(debug_headers: bool) -> None:
    check(run_virtually(measured(pairs((PROMPT, PROMPT)), debug_headers=debug_headers)), SPLIT)


@pytest.mark.parametrize("order", [Order.CONCURRENT, Order.DECODE_FIRST])
def test_a_push_overlaps_and_no_phase_counts_twice(order: Order) -> None:
    check(run_virtually(measured(pairs((PROMPT, PROMPT)), order)), SPLIT)


def test_a_p_that_is_full_queues_in_the_gateway() -> None:
    step = run_virtually(measured(pairs((PROMPT, PROMPT)), limits=Limits(max_in_flight_per_prefill=1)))
    check(step, {**{phase: SPLIT[phase] for phase in SPLIT if phase is not Phase.QUEUE}, Phase.GATEWAY_QUEUE: WAIT / 2})


def test_a_d_that_is_full_queues() -> None:
    """The first request of each pair decodes until long after the KV of the second could move."""
    answer = 40
    step = run_virtually(measured(pairs((PROMPT, PROMPT), answer), decode={"max_running": 1}))
    wait = PREFILL + TRANSFER + STEP + TOKEN + (answer - 1) * STEP - 2 * PREFILL
    expected = {**SPLIT, Phase.DECODE: (answer - 1) * STEP, Phase.DECODE_QUEUE: wait / 2}
    check(step, expected)


def test_a_prompt_that_is_not_split_is_prefilled_by_d() -> None:
    """One of two requests: its prefill counts as D's, not as the gateway's."""
    short, answer = 400, 3
    load = pairs((PROMPT, short), answer)
    step = run_virtually(measured(load, choosing=Choosing(disaggregate_above_tokens=1000)))
    alone = STEP + short * TOKEN
    expected = {
        Phase.PREFILL: PREFILL / 2,
        Phase.TRANSFER: TRANSFER / 2,
        Phase.FIRST_STEP: (STEP + TOKEN + alone) / 2,
        Phase.DECODE: (answer - 1) * STEP,
    }
    check(step, expected)


def test_every_phase_of_an_aggregated_engine() -> None:
    step = run_virtually(measured(pairs((PROMPT, PROMPT), 1), roles=(Role.AGGREGATED,)))
    check(step, {Phase.PREFILL: PREFILL, Phase.QUEUE: WAIT / 2})
