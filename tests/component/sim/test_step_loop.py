"""The step loop over HTTP: queues, KV capacity, transfers, and what /metrics shows of them."""

import asyncio

import aiohttp
import pytest

from pdx_api.names import Order
from pdx_sim import PROFILES, FaultKind, SimEngine, SimSettings, expected_text, tokenize
from tests.component.sim.conftest import PROMPT, MakePair, Pair, hang_up, until

EXPECTED = expected_text(tokenize(PROMPT), 5)
STEPS = {"step_seconds": 1e-3, "step_sequence_seconds": 1e-5, "step_token_seconds": 1e-6}
STEPPED = SimSettings(step_seconds=1e-3, step_sequence_seconds=1e-5, step_token_seconds=1e-6)
BLOCKS = 44
"""Blocks of PROMPT."""


async def gauge(pair: Pair, engine: SimEngine, name: str) -> float:
    """A metric of /metrics, by its name without `vllm:`."""
    async with pair.session.get(f"{engine.url}/metrics") as response:
        text = await response.text()
    (line,) = [line for line in text.splitlines() if line.startswith(f"vllm:{name}{{")]
    return float(line.rpartition(" ")[2])


@pytest.mark.parametrize("order", list(Order))
async def test_a_split_request_gets_its_text(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order, **STEPS)
    params = (await pair.prefill()).params
    assert (await pair.decode(params)).text == EXPECTED
    await until(pair.is_clean)
    assert pair.d.counts.prompt_tokens_external == 700
    assert not pair.d.counts.violations


async def test_a_prompt_is_prefilled_once_and_its_tokens_are_counted(make_pair: MakePair) -> None:
    pair = await make_pair(max_num_batched_tokens=100, **STEPS)
    answers = await asyncio.gather(*(pair.post(pair.d, str(index)) for index in range(5)))
    assert {answer.text for answer in answers} == {EXPECTED}
    assert pair.d.counts.prompt_tokens_local == 5 * 700
    assert pair.d.counts.generation_tokens == 25
    assert pair.is_clean()


async def test_metrics_show_who_runs_and_who_waits_for_kv_capacity(make_pair: MakePair) -> None:
    slow = {**STEPS, "step_seconds": 0.02, "num_blocks": 100, "max_model_len": 1600}
    pair = await make_pair(decode=slow)
    tasks = [asyncio.create_task(pair.post(pair.d, str(index), max_tokens=500)) for index in range(3)]
    await until(lambda: pair.d.counts.running_now == 2)
    await until(lambda: pair.d.counts.waiting_now == 1)
    assert await gauge(pair, pair.d, "num_requests_running") == 2
    assert await gauge(pair, pair.d, "num_requests_waiting") == 1
    assert 2 * BLOCKS / 100 <= await gauge(pair, pair.d, "kv_cache_usage_perc") <= 1
    await hang_up(tasks.pop(0))
    await until(lambda: (pair.d.counts.running_now, pair.d.counts.waiting_now) == (2, 0))
    for task in tasks:
        await hang_up(task)
    await until(pair.is_clean)
    assert await gauge(pair, pair.d, "num_requests_running") == 0


async def test_max_num_seqs_bounds_a_prefill_engine_too(make_pair: MakePair) -> None:
    pair = await make_pair(prefill={**STEPS, "max_running": 2, "step_seconds": 0.05})
    tasks = [asyncio.create_task(pair.prefill(str(index))) for index in range(4)]
    await until(lambda: pair.p.counts.running_now == 2 and pair.p.counts.waiting_now == 2)
    await asyncio.gather(*tasks)


async def test_a_full_pool_preempts_and_the_answers_are_complete(make_pair: MakePair) -> None:
    tight = {**STEPS, "num_blocks": 100, "max_model_len": 1600}
    pair = await make_pair(decode=tight)
    answers = await asyncio.gather(*(pair.post(pair.d, str(index), max_tokens=300) for index in range(2)))
    assert {answer.text for answer in answers} == {expected_text(tokenize(PROMPT), 300)}
    assert await gauge(pair, pair.d, "num_preemptions_total") > 0
    assert pair.is_clean()


async def test_a_closed_prefill_stops_at_the_end_of_its_step(make_pair: MakePair) -> None:
    pair = await make_pair(prefill={**STEPS, "step_seconds": 0.02, "max_num_batched_tokens": 10})
    task = asyncio.create_task(pair.prefill())
    await until(lambda: pair.p.counts.prompt_tokens_local)
    await hang_up(task)
    await until(lambda: pair.p.counts.prefills_aborted)
    assert 0 < pair.p.counts.orphan_prefill_tokens <= 20
    assert pair.p.counts.prompt_tokens_local < 700
    assert pair.is_clean()


async def test_transfers_share_the_engines_link(make_pair: MakePair) -> None:
    """Two transfers of 0.1 s each take 0.2 s together; a machine that is busy makes it longer, never shorter."""
    link = {"kv_bytes_per_token": 1_000_000, "engine_gigabytes_per_second": 7.0}
    pair = await make_pair(**link, **STEPS)
    params = [(await pair.prefill(str(index))).params for index in range(2)]
    clock = asyncio.get_running_loop().time
    began = clock()
    await asyncio.gather(*(pair.decode(each, str(index)) for index, each in enumerate(params)))
    assert clock() - began >= 0.19


@pytest.mark.parametrize("order", list(Order))
async def test_a_link_of_the_pair_bounds_a_transfer(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order, kv_bytes_per_token=1_000_000, pair_gigabytes_per_second=7.0)
    params = (await pair.prefill()).params
    clock = asyncio.get_running_loop().time
    began = clock()
    assert (await pair.decode(params)).text == EXPECTED
    assert clock() - began >= 0.095


async def test_a_profile_serves(make_pair: MakePair) -> None:
    changes = dict(PROFILES["llama-3.3-70b-4xh100"].settings)
    pair = await make_pair(**changes)
    params = (await pair.prefill()).params
    assert (await pair.decode(params, max_tokens=2)).status == 200


@pytest.mark.parametrize("steps", [{}, STEPS], ids=["simple", "steps"])
async def test_a_set_prefill_duration(make_pair: MakePair, steps: dict[str, float]) -> None:
    pair = await make_pair(prefill=steps)
    pair.p.faults.add(FaultKind.LONG_PREFILL, seconds=0.3)
    clock = asyncio.get_running_loop().time
    began = clock()
    assert (await pair.prefill()).status == 200
    assert clock() - began >= 0.29
    assert pair.p.counts.prompt_tokens_local == 700


@pytest.mark.parametrize("steps", [{}, STEPS], ids=["simple", "steps"])
async def test_a_core_that_hangs_answers_http_and_progresses_when_it_resumes(
    make_pair: MakePair, steps: dict[str, float]
) -> None:
    pair = await make_pair(decode={**steps, "decode_token_seconds": 1e-3})
    running = asyncio.create_task(pair.post(pair.d, "running", max_tokens=200))
    await until(lambda: pair.d.counts.generation_tokens > 3)
    pair.d.faults.add(FaultKind.HANG_CORE)
    await asyncio.sleep(0.05)  # a token that was due at this moment may still come
    late = asyncio.create_task(pair.post(pair.d, "late"))
    leaves = asyncio.create_task(pair.post(pair.d, "leaves"))
    await until(lambda: pair.d.counts.requests["/v1/completions"] == 3)
    produced = pair.d.counts.generation_tokens
    await hang_up(leaves)
    async with pair.session.get(f"{pair.d.url}/health") as response:
        assert response.status == 200
    assert await gauge(pair, pair.d, "num_requests_running") == 1
    await asyncio.sleep(0.05)
    assert pair.d.counts.generation_tokens == produced
    assert not running.done()
    pair.d.faults.clear()
    assert (await running).text == expected_text(tokenize(PROMPT), 200)
    assert (await late).text == EXPECTED
    await until(pair.is_clean)
    assert await gauge(pair, pair.d, "num_requests_running") == 0


async def test_a_hang_ends_by_itself() -> None:
    async with SimEngine(STEPPED) as engine, aiohttp.ClientSession() as session:
        engine.faults.add(FaultKind.HANG_CORE, seconds=0.1)
        async with session.post(f"{engine.url}/v1/completions", json={"prompt": "x", "max_tokens": 1}) as response:
            assert response.status == 200
        assert not engine.core.hangs


async def test_an_engine_stops_and_restarts_while_its_core_hangs() -> None:
    async with SimEngine(STEPPED) as engine:
        engine.faults.add(FaultKind.HANG_CORE)
        await engine.restart()
        assert not engine.core.hangs
        assert engine.metrics()


async def test_a_prefix_is_computed_once_found_by_later_prompts_and_counted(make_pair: MakePair) -> None:
    pair = await make_pair(enable_prefix_caching=True, **STEPS)
    answers = [await pair.post(pair.d, str(index)) for index in range(2)]
    assert {answer.text for answer in answers} == {EXPECTED}
    found = [answer.body["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert found == [0, 700 // 16 * 16], "full blocks only"
    assert pair.d.counts.prompt_tokens_local == 700 + 700 % 16
    assert await gauge(pair, pair.d, "prefix_cache_hits_total") == 700 // 16 * 16
    assert await gauge(pair, pair.d, "prompt_tokens_total") == 1400
    assert pair.is_clean()


async def test_a_d_reads_only_what_its_own_prefix_cache_has_not(make_pair: MakePair) -> None:
    pair = await make_pair(enable_prefix_caching=True, lease_seconds=30.0, **STEPS)
    for index in range(2):
        params = (await pair.prefill(str(index))).params
        assert (await pair.decode(params, str(index))).text == EXPECTED
    await until(pair.is_clean)
    assert pair.p.counts.prompt_tokens_local == 700 + 700 % 16
    assert pair.d.counts.prompt_tokens_external == 700 + 700 % 16
    assert not pair.d.counts.violations
