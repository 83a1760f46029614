"""The shared directory, simulated: a hit, a miss, and what kills a real engine."""

import asyncio
from pathlib import Path

from pdx_sim import expected_text, tokenize
from tests.component.sim.conftest import PREFILL_PARAMS, PROMPT, MakePair, until

EXPECTED = expected_text(tokenize(PROMPT), 5)
SHARED = {"connector": "SharedStorage", "block_size": 16}


async def test_decode_finds_a_saved_prefill(make_pair: MakePair, tmp_path: Path) -> None:
    pair = await make_pair(**SHARED, storage=str(tmp_path))
    answer = await pair.post(pair.p, max_tokens=1)
    assert answer.body["kv_transfer_params"] is None
    assert (await pair.post(pair.d)).text == EXPECTED
    assert (pair.d.counts.prompt_tokens_external, pair.d.counts.prompt_tokens_local) == (688, 12)
    assert await pair.post(pair.p, max_tokens=1)
    assert pair.p.counts.prompt_tokens_external == 688, "P finds it as well"
    await until(pair.is_clean)
    assert not pair.p.counts.violations
    assert not pair.d.counts.violations


async def test_decode_computes_and_saves_a_miss(make_pair: MakePair, tmp_path: Path) -> None:
    pair = await make_pair(**SHARED, storage=str(tmp_path))
    assert (await pair.post(pair.d)).text == EXPECTED
    assert (pair.d.counts.prompt_tokens_external, pair.d.counts.prompt_tokens_local) == (0, 700)
    await pair.post(pair.p)
    assert pair.p.counts.prompt_tokens_external == 688


async def test_a_prompt_of_whole_blocks_and_one_token_is_not_found(make_pair: MakePair, tmp_path: Path) -> None:
    """vLLM saves such a prompt under all of its blocks and looks up one block less."""
    pair = await make_pair(**SHARED, storage=str(tmp_path))
    prompt = list(range(33))
    await pair.post(pair.p, prompt=prompt)
    await pair.post(pair.d, prompt=prompt)
    assert pair.d.counts.prompt_tokens_external == 0


async def test_a_read_during_a_write_kills_the_engine(make_pair: MakePair, tmp_path: Path) -> None:
    pair = await make_pair(**SHARED, storage=str(tmp_path), prefill={"transfer_seconds": 0.5})
    task = asyncio.create_task(pair.post(pair.p, max_tokens=1))
    await until(lambda: any(tmp_path.iterdir()))
    assert (await pair.post(pair.d)).status == 500
    assert pair.d.counts.violations == {"read_early": 1}
    assert pair.d.dead
    assert (await task).status == 200
    await pair.d.restart()
    assert (await pair.post(pair.d)).text == EXPECTED


async def test_parameters_are_a_violation(make_pair: MakePair, tmp_path: Path) -> None:
    pair = await make_pair(**SHARED, storage=str(tmp_path))
    await pair.post(pair.p, max_tokens=1, kv_transfer_params=PREFILL_PARAMS)
    assert pair.p.counts.violations == {"params_unexpected": 1}
