"""Pull, row by row of the measurements on real engines."""

import asyncio
from typing import Any

import aiohttp
import pytest

from pdx_sim import FaultKind, OnLoadFailure, expected_text, tokenize
from tests.component.sim.conftest import PREFILL_PARAMS, PROMPT, SHORT_LEASE, MakePair, hang_up, until

EXPECTED = expected_text(tokenize(PROMPT), 5)


async def test_a_handoff_gives_the_text_of_one_engine(make_pair: MakePair) -> None:
    pair = await make_pair()
    params = (await pair.prefill()).params
    assert pair.p.counts.blocks_pinned_now == 44
    answer = await pair.decode(params)
    assert (answer.status, answer.text) == (200, EXPECTED)
    await until(pair.is_clean)
    assert (pair.p.counts.pulled, pair.d.counts.prompt_tokens_external) == (1, 700)
    assert not pair.p.counts.violations
    assert not pair.d.counts.violations


async def test_an_unread_prefill_is_held_until_its_lease_ends(make_pair: MakePair) -> None:
    pair = await make_pair(lease_seconds=SHORT_LEASE)
    await pair.prefill()
    assert pair.p.counts.blocks_held_now == 44
    await until(pair.is_clean)
    assert pair.p.counts.expired == 1


async def test_heartbeats_keep_a_lease_while_decode_waits(make_pair: MakePair) -> None:
    pair = await make_pair(lease_seconds=1.0, decode={"transfer_seconds": 2.0})
    answer = await pair.decode((await pair.prefill()).params)
    assert answer.text == EXPECTED
    assert pair.p.counts.heartbeats > 0
    assert pair.p.counts.expired == 0


async def test_decode_closed_before_it_has_read_frees_both(make_pair: MakePair) -> None:
    pair = await make_pair(decode={"transfer_seconds": 30.0})
    task = asyncio.create_task(pair.decode((await pair.prefill()).params))
    await until(lambda: pair.d.counts.blocks_held_now)
    await hang_up(task)
    await until(pair.is_clean)
    assert (pair.p.counts.released, pair.d.counts.aborted) == (1, 1)


async def test_decode_closed_later_stops_at_the_next_token(make_pair: MakePair) -> None:
    pair = await make_pair(decode={"decode_token_seconds": 0.01})
    task = asyncio.create_task(pair.decode((await pair.prefill()).params, max_tokens=1000))
    await until(lambda: pair.d.counts.generation_tokens > 1)
    await hang_up(task)
    await until(pair.is_clean)
    assert pair.d.counts.orphan_tokens == 1
    assert pair.d.counts.longest_orphan_seconds < 0.1
    assert pair.p.counts.pulled == 1


async def test_decode_of_one_token_frees(make_pair: MakePair) -> None:
    pair = await make_pair()
    assert (await pair.decode((await pair.prefill()).params, max_tokens=1)).status == 200
    await until(pair.is_clean)


@pytest.mark.parametrize("shaken", [True, False])
async def test_refused_decode_frees_only_over_a_handshake(make_pair: MakePair, shaken: bool) -> None:
    pair = await make_pair()
    if shaken:
        await pair.decode((await pair.prefill("warm")).params, "warm")
    params = (await pair.prefill()).params
    assert (await pair.decode(params, max_tokens=99999)).status == 400
    if shaken:
        await until(pair.is_clean)
        assert pair.p.counts.released == 1
    else:
        assert pair.d.counts.notices_lost == 1
        assert pair.p.counts.blocks_held_now == 44


async def test_prefill_closed_midway_stops_and_frees(make_pair: MakePair) -> None:
    pair = await make_pair(prefill={"prefill_token_seconds": 1e-3, "prefill_chunk": 50})
    task = asyncio.create_task(pair.prefill())
    await until(lambda: pair.p.counts.prompt_tokens_local >= 50)
    await hang_up(task)
    await until(pair.is_clean)
    assert (pair.p.counts.prefills_aborted, pair.p.counts.orphan_prefill_tokens) == (1, 50)
    assert pair.p.counts.prefills_finished == 0


async def test_lost_answer_of_prefill_holds_until_the_lease_ends(make_pair: MakePair) -> None:
    pair = await make_pair()
    pair.p.faults.add(FaultKind.LOSE_ANSWER)
    with pytest.raises(aiohttp.ClientError):
        await pair.prefill()
    assert pair.p.counts.blocks_pinned_now == 44
    pair.p.end_leases()
    assert pair.p.counts.expired == 1


async def test_dead_prefill_fails_decode_whole_and_streamed(make_pair: MakePair) -> None:
    pair = await make_pair()
    params = (await pair.prefill()).params
    await pair.p.kill()
    answer = await pair.decode(params)
    assert (answer.status, answer.body["error"]["type"]) == (500, "InternalServerError")
    body = {"model": "sim", "prompt": PROMPT, "stream": True, "kv_transfer_params": params}
    async with pair.session.post(f"{pair.d.url}/v1/completions", json=body) as response:
        assert response.status == 200
        text = await response.text()
    assert text.startswith('data: {"error":')
    assert text.endswith("data: [DONE]\n\n")
    await until(pair.is_clean)


async def test_recompute_hides_a_load_failure(make_pair: MakePair) -> None:
    pair = await make_pair(on_load_failure=OnLoadFailure.RECOMPUTE)
    params = (await pair.prefill()).params
    await pair.p.restart()
    answer = await pair.decode(params)
    assert (answer.status, answer.text) == (200, EXPECTED)
    assert (pair.d.counts.recomputed, pair.d.counts.prompt_tokens_local) == (1, 700)


async def test_a_blocked_transfer_fails_until_it_is_open_again(make_pair: MakePair) -> None:
    pair = await make_pair()
    assert (await pair.decode((await pair.prefill()).params)).text == EXPECTED
    pair.d.faults.add(FaultKind.BLOCK_TRANSFER)
    assert (await pair.decode((await pair.prefill("two")).params, "two")).status == 500
    assert pair.d.counts.transfers_failed == 1
    pair.d.faults.clear()
    assert (await pair.decode((await pair.prefill("three")).params, "three")).text == EXPECTED


async def test_a_read_whose_packets_are_lost_waits_until_they_arrive(make_pair: MakePair) -> None:
    pair = await make_pair()
    await pair.decode((await pair.prefill()).params)
    params = (await pair.prefill("two")).params
    pair.d.faults.add(FaultKind.DROP_TRANSFER)
    read = asyncio.create_task(pair.decode(params, "two"))
    done, _ = await asyncio.wait([read], timeout=1.0)
    assert not done
    pair.d.faults.clear()
    assert (await read).text == EXPECTED


async def test_a_new_connection_whose_packets_are_lost_fails(make_pair: MakePair) -> None:
    pair = await make_pair(decode={"side_channel_timeout": 0.3})
    params = (await pair.prefill()).params
    pair.d.faults.add(FaultKind.DROP_TRANSFER)
    assert (await pair.decode(params)).status == 500
    assert pair.d.counts.transfers_failed == 1


async def test_restarted_prefill_is_another_engine(make_pair: MakePair) -> None:
    pair = await make_pair()
    params = (await pair.prefill()).params
    await pair.p.restart()
    assert (await pair.decode(params)).status == 500
    assert pair.p.counts.handshakes_refused == 1
    assert (await pair.decode((await pair.prefill()).params)).text == EXPECTED


async def test_a_killed_decode_notifies_no_peer(make_pair: MakePair) -> None:
    pair = await make_pair(decode={"transfer_seconds": 30.0})
    task = asyncio.create_task(pair.decode((await pair.prefill()).params))
    await until(lambda: pair.p.counts.handshakes)
    await pair.d.kill()
    with pytest.raises(aiohttp.ClientError):
        await task
    pair.p.end_leases()
    assert (pair.p.counts.expired, pair.p.counts.released) == (1, 0)


async def test_second_read_is_a_violation(make_pair: MakePair) -> None:
    pair = await make_pair()
    params = (await pair.prefill()).params
    await pair.decode(params)
    assert (await pair.decode(params)).status == 500
    assert pair.p.counts.violations == {"read_twice": 1}


async def test_late_read_is_a_violation(make_pair: MakePair) -> None:
    pair = await make_pair()
    params = (await pair.prefill()).params
    pair.p.end_leases()
    assert (await pair.decode(params)).status == 500
    assert pair.p.counts.violations == {"read_late": 1}


async def test_foreign_kv_shows_in_the_text(make_pair: MakePair) -> None:
    pair = await make_pair()
    answer = await pair.decode((await pair.prefill()).params, prompt="Quite another prompt.")
    assert answer.text == EXPECTED
    assert pair.d.counts.violations == {"foreign_kv": 1}


@pytest.mark.parametrize("blocks", [None, [], [[]]])
async def test_decode_without_block_ids_kills_the_engine(make_pair: MakePair, blocks: Any) -> None:
    pair = await make_pair()
    params = {**(await pair.prefill()).params, "remote_block_ids": blocks}
    assert (await pair.decode(params)).status == 500
    assert pair.d.counts.violations == {"engine_killed": 1}
    assert (await pair.post(pair.d)).status == 500
    async with pair.session.get(f"{pair.d.url}/health") as response:
        assert response.status == 503


@pytest.mark.parametrize(
    ("changes", "violation"),
    [
        ({"max_tokens": 2}, "prefill_tokens"),
        ({"n": 2}, "many_sequences"),
        ({"kv_transfer_params": {**PREFILL_PARAMS, "remote_host": "evil"}}, "prefill_params"),
        ({"kv_transfer_params": {**PREFILL_PARAMS, "extra": 1}}, "params_unexpected"),
        ({"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": True}}, "params_malformed"),
        ({"kv_transfer_params": "nonsense"}, "params_malformed"),
        ({"ec_transfer_params": {"a": 1}}, "client_params"),
        ({"vllm_xargs": {"kv_transfer_params": {}}}, "client_params"),
    ],
)
async def test_malformed_prefill_leg_is_counted(make_pair: MakePair, changes: dict[str, Any], violation: str) -> None:
    pair = await make_pair()
    await pair.prefill(**changes)
    assert violation in pair.p.counts.violations


async def test_leg_at_the_wrong_role_is_counted(make_pair: MakePair) -> None:
    pair = await make_pair()
    params = (await pair.prefill()).params
    assert (await pair.post(pair.p, kv_transfer_params=params)).status == 500
    answer = await pair.post(pair.d, max_tokens=1, kv_transfer_params=PREFILL_PARAMS)
    assert answer.body["kv_transfer_params"] is None
    assert pair.p.counts.violations == {"decode_leg_at_prefill": 1}
    assert pair.d.counts.violations == {"prefill_leg_at_decode": 1}
