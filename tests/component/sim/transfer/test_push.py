"""Push, row by row of the measurements on real engines."""

import asyncio

import pytest

from pdx_api.names import Order
from pdx_sim import expected_text, tokenize
from pdx_sim.core.sequence import Finish
from pdx_sim.transfer.side_channel import Message
from tests.component.sim.conftest import PROMPT, Answer, MakePair, Pair, hang_up, until

EXPECTED = expected_text(tokenize(PROMPT), 5)
SLOW_PREFILL = {"prefill_token_seconds": 2e-4, "prefill_chunk": 50}


@pytest.fixture(params=[Order.DECODE_FIRST, Order.CONCURRENT])
def order(request: pytest.FixtureRequest) -> Order:
    return Order(request.param)


async def waiting_decode(pair: Pair) -> "asyncio.Task[Answer]":
    """A D leg that has registered with P and waits."""
    task: asyncio.Task[Answer] = asyncio.create_task(pair.decode(pair.decode_params()))
    await until(lambda: pair.p.counts.registered_now)
    return task


async def abort_prefill(pair: Pair) -> None:
    """A P leg closed in the middle of its prefill."""
    before = pair.p.counts.prompt_tokens_local
    task = asyncio.create_task(pair.prefill())
    await until(lambda: pair.p.counts.prompt_tokens_local > before)
    await hang_up(task)
    await until(lambda: pair.p.counts.prefills_aborted)


async def close_at_the_write(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, waiting: "asyncio.Task[Answer]", *, after: bool
) -> None:
    """D's leg is closed right before or after P's write, before either has noticed the other: no block stays held."""
    answer = pair.d.connector.answer

    def closing(message: Message) -> Message:
        written = answer(message) if after else {}
        pair.d.core.end_all(Finish.ABORT)
        return written if after else answer(message)

    with monkeypatch.context() as patch:
        patch.setattr(pair.d.connector, "answer", closing)
        await asyncio.gather(waiting, pair.prefill())
    await until(pair.is_clean)
    assert not pair.p.counts.push_failures


async def test_legs_may_arrive_in_either_order_or_at_once(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order)
    waiting = await waiting_decode(pair)
    await pair.prefill()
    assert (await waiting).text == EXPECTED
    params = (await pair.prefill("two")).params
    assert params["transfer_mode"] == "push"
    assert (await pair.decode(params, "two")).text == EXPECTED
    both = await asyncio.gather(pair.decode(pair.decode_params("three"), "three"), pair.prefill("three"))
    assert both[0].text == EXPECTED
    await until(pair.is_clean)
    assert (pair.p.counts.pushed, pair.d.counts.prompt_tokens_external) == (3, 2100)
    assert not pair.p.counts.violations
    assert not pair.d.counts.violations


async def test_streamed_decode_sends_its_head_before_the_kv_arrives(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order)
    body = {"model": "sim", "prompt": PROMPT, "stream": True, "kv_transfer_params": pair.decode_params()}
    headers = {"X-Request-Id": "one"}
    async with pair.session.post(f"{pair.d.url}/v1/completions", json=body, headers=headers) as response:
        assert response.status == 200
        assert pair.d.counts.generation_tokens == 0
        await pair.prefill()
        assert (await response.text()).endswith("[DONE]\n\n")


async def test_prefill_without_decode_is_held_until_its_lease_ends(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order)
    await pair.prefill()
    assert pair.p.counts.blocks_held_now == 44
    pair.p.end_leases()
    assert pair.p.counts.expired == 1
    assert pair.is_clean()


async def test_refused_decode_does_not_reach_prefill(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order)
    await pair.prefill()
    assert (await pair.decode(pair.decode_params(), max_tokens=99999)).status == 400
    assert pair.p.counts.blocks_pinned_now == 44
    pair.p.end_leases()
    assert pair.p.counts.expired == 1


async def test_decode_of_one_token_and_a_tiny_prompt_frees_prefill(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order)
    await pair.prefill()
    assert (await pair.decode(pair.decode_params(), prompt="tiny", max_tokens=1)).status == 200
    await until(pair.is_clean)
    assert not pair.d.counts.violations


async def test_a_closed_decode_is_freed_when_prefill_has_finished(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order)
    await hang_up(await waiting_decode(pair))
    await until(lambda: pair.d.counts.blocks_stranded_now == 44)
    await pair.prefill()
    await until(pair.is_clean)


@pytest.mark.parametrize("after", [False, True])
async def test_a_decode_closed_at_the_write_is_freed(
    make_pair: MakePair, order: Order, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    pair = await make_pair(order)
    await close_at_the_write(pair, monkeypatch, await waiting_decode(pair), after=after)


async def test_only_a_whole_prefill_frees_a_stranded_decode(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order, prefill=SLOW_PREFILL)
    waiting = await waiting_decode(pair)
    await abort_prefill(pair)
    await hang_up(waiting)
    await until(lambda: pair.d.counts.blocks_stranded_now == 44)
    assert pair.p.counts.blocks_held_now == 0
    await pair.prefill()
    await until(pair.is_clean)


async def test_a_tiny_prefill_spoils_a_stranded_decode(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order)
    await hang_up(await waiting_decode(pair))
    await pair.prefill(prompt="tiny")
    assert pair.p.counts.violations == {"push_mismatch": 1}
    await pair.prefill()
    assert pair.p.counts.blocks_pinned_now == 45
    assert pair.d.counts.blocks_stranded_now == 44


async def test_a_repeated_prefill_serves_the_waiting_decode(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order, prefill=SLOW_PREFILL)
    waiting = await waiting_decode(pair)
    await abort_prefill(pair)
    await pair.prefill()
    assert (await waiting).text == EXPECTED
    await until(pair.is_clean)


async def test_stranded_blocks_are_lost_after_decoder_ttl_seconds(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order, decode={"decoder_ttl_seconds": 0.1})
    await hang_up(await waiting_decode(pair))
    await until(lambda: pair.d.counts.decode_blocks_lost == 44)
    assert pair.is_clean()


async def test_wrong_engine_id_fails_at_once(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order)
    assert (await pair.decode(pair.decode_params(remote_engine_id="nobody"))).status == 500
    await until(pair.is_clean)


async def test_dead_side_channel_hangs_and_holds(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order)
    await pair.p.kill()
    task = asyncio.create_task(pair.decode(pair.decode_params()))
    await until(lambda: pair.d.counts.blocks_held_now)
    done, _ = await asyncio.wait([task], timeout=0.1)
    assert not done
    await hang_up(task)
    await until(lambda: pair.d.counts.blocks_stranded_now == 44)


async def test_a_used_push_id_is_not_used_again(make_pair: MakePair, order: Order) -> None:
    pair = await make_pair(order)
    await asyncio.gather(pair.decode(pair.decode_params()), pair.prefill())
    task = asyncio.create_task(pair.decode(pair.decode_params()))
    await until(lambda: pair.p.counts.violations == {"id_reused": 1})
    await pair.prefill()
    assert not task.done()
    await hang_up(task)


@pytest.mark.parametrize(
    ("changes", "violation"),
    [({"remote_request_id": None}, "engine_killed"), ({"remote_request_id": "other"}, "id_mismatch")],
)
async def test_malformed_decode_leg_is_counted(make_pair: MakePair, changes: dict[str, str], violation: str) -> None:
    pair = await make_pair(Order.CONCURRENT)
    task = asyncio.create_task(pair.decode(pair.decode_params(**changes)))
    await until(lambda: pair.d.counts.violations == {violation: 1})
    await hang_up(task)
