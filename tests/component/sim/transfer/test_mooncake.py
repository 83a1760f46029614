"""Mooncake: the simulator does what was measured on real engines. docs/settling.md has a part of these facts."""

import asyncio
from typing import Any

import pytest

from pdx_api.vllm_metrics import read_metrics
from pdx_sim import expected_text, tokenize
from tests.component.sim.conftest import PROMPT, Answer, MakePair, Pair, hang_up, until

EXPECTED = expected_text(tokenize(PROMPT), 5)
SLOW = {"prefill_token_seconds": 2e-4, "prefill_chunk": 50}
TOO_MANY = 2**31 - 1


@pytest.fixture
async def pair(make_pair: MakePair) -> Pair:
    made: Pair = await make_pair(connector="Mooncake")
    return made


def prefill_params(transfer_id: str = "x") -> dict[str, Any]:
    return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}


def decode_params(pair: Pair, transfer_id: str = "x", **changes: Any) -> dict[str, Any]:
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_bootstrap_addr": f"http://127.0.0.1:{pair.p.side_channel_port}",
        "remote_engine_id": pair.p.engine_id,
        "transfer_id": transfer_id,
    }
    return {**params, **changes}


async def prefill(pair: Pair, **body: Any) -> Answer:
    return await pair.prefill(**{"kv_transfer_params": prefill_params(), "ignore_eos": True, **body})


async def waiting_decode(pair: Pair) -> "asyncio.Task[Answer]":
    task: asyncio.Task[Answer] = asyncio.create_task(pair.decode(decode_params(pair)))
    await until(lambda: pair.p.counts.registered_now)
    return task


async def test_either_leg_may_arrive_first(pair: Pair) -> None:
    waiting = await waiting_decode(pair)
    assert (await prefill(pair)).body["kv_transfer_params"] is None
    assert (await waiting).text == EXPECTED
    await prefill(pair, kv_transfer_params=prefill_params("y"))
    assert pair.p.counts.blocks_pinned_now
    assert (await pair.decode(decode_params(pair, "y"))).text == EXPECTED
    await until(pair.is_clean)
    assert not pair.p.counts.violations + pair.d.counts.violations


async def test_a_refused_leg_frees_a_finished_prefill(pair: Pair) -> None:
    await prefill(pair)
    assert (await pair.decode(decode_params(pair), max_tokens=TOO_MANY)).status == 400
    await until(pair.is_clean)
    assert pair.p.counts.released == 1


async def test_a_refused_leg_stays_registered_until_a_p_leg_has_ended(pair: Pair) -> None:
    assert (await pair.decode(decode_params(pair), max_tokens=TOO_MANY)).status == 400
    await until(lambda: pair.p.counts.registered_now)
    await prefill(pair, prompt=".")
    await until(lambda: not pair.p.counts.registered_now and pair.is_clean())


async def test_a_waiting_d_fails_if_p_has_fewer_blocks(pair: Pair) -> None:
    waiting = await waiting_decode(pair)
    await prefill(pair, prompt=".")
    assert (await waiting).status == 500
    await until(pair.is_clean)


async def test_a_whole_p_leg_frees_a_cancelled_d(pair: Pair) -> None:
    await hang_up(await waiting_decode(pair))
    await until(lambda: pair.d.counts.blocks_stranded_now)
    await prefill(pair)
    await until(pair.is_clean)


async def test_a_d_registers_although_its_leg_is_aborted_meanwhile(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, registering = pair.d.station.channel, asyncio.Event()
    call = channel.call

    async def slow_call(*arguments: Any) -> Any:
        registering.set()
        await asyncio.sleep(0.1)
        return await call(*arguments)

    monkeypatch.setattr(channel, "call", slow_call)
    leaving = asyncio.create_task(pair.decode(decode_params(pair)))
    await registering.wait()
    await hang_up(leaving)
    await prefill(pair)
    await until(pair.is_clean)


async def test_nothing_wakes_a_d_whose_p_leg_was_aborted(make_pair: MakePair) -> None:
    pair = await make_pair(connector="Mooncake", prefill=SLOW)
    waiting = await waiting_decode(pair)
    aborted = asyncio.create_task(prefill(pair))
    await until(lambda: pair.p.counts.prompt_tokens_local)
    await hang_up(aborted)
    await until(lambda: pair.p.counts.prefills_aborted)
    await prefill(pair)
    assert not waiting.done()
    assert pair.p.counts.registered_now == 1
    assert pair.p.counts.blocks_pinned_now
    await hang_up(waiting)


async def test_a_d_gives_up_a_p_that_never_finishes(make_pair: MakePair) -> None:
    pair = await make_pair(connector="Mooncake", decoder_ttl_seconds=0.2)
    assert (await pair.decode(decode_params(pair))).status == 500
    assert not pair.p.counts.registered_now


@pytest.mark.parametrize("change", [{"remote_engine_id": "other"}, {"remote_bootstrap_addr": "http://127.0.0.1:1"}])
async def test_d_fails_at_once_if_the_bootstrap_lacks_its_p(pair: Pair, change: dict[str, str]) -> None:
    assert (await pair.decode(decode_params(pair, **change))).status == 500
    assert pair.d.counts.load_failures == 1


async def test_d_waits_for_a_p_that_has_restarted(pair: Pair) -> None:
    """D queries the address of a P once for each engine id."""
    await prefill(pair)
    before = decode_params(pair)
    assert (await pair.decode(before)).status == 200
    await pair.p.restart()
    await prefill(pair)
    waiting = asyncio.create_task(pair.decode(before))
    await until(lambda: pair.d.counts.blocks_held_now)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await hang_up(waiting)


@pytest.mark.parametrize(
    ("leg", "violation"),
    [
        ({"kv_transfer_params": {**prefill_params(), "transfer_id": ""}}, "prefill_params"),
        ({"kv_transfer_params": {**prefill_params(), "remote_host": None}}, "params_unexpected"),
        ({"ignore_eos": False}, "prefill_may_stop"),
        ({"max_tokens": 2}, "prefill_tokens"),
    ],
)
async def test_a_malformed_p_leg_is_counted(pair: Pair, leg: dict[str, Any], violation: str) -> None:
    await prefill(pair, **leg)
    assert violation in pair.p.counts.violations


async def test_reuse_of_a_pinned_transfer_id_is_counted(pair: Pair) -> None:
    await prefill(pair)
    await prefill(pair)
    assert pair.p.counts.violations == {"id_reused": 1}


async def test_foreign_kv_is_counted_also_for_a_cancelled_d(pair: Pair) -> None:
    waiting = asyncio.create_task(pair.post(pair.d, prompt="a", kv_transfer_params=decode_params(pair)))
    await until(lambda: pair.p.counts.registered_now)
    await hang_up(waiting)
    await prefill(pair, prompt="b")
    await until(pair.is_clean)
    assert pair.p.counts.violations == {"foreign_kv": 1}


async def test_a_leg_of_the_other_role_kills(pair: Pair) -> None:
    leg: dict[str, Any] = {"kv_transfer_params": prefill_params(), "max_tokens": 1, "ignore_eos": True}
    assert (await pair.post(pair.d, **leg)).status == 500
    assert (await pair.post(pair.p, kv_transfer_params=decode_params(pair))).status == 500
    assert pair.d.dead
    assert pair.p.dead


async def test_transfers_are_counted_from_vllm_033_on(make_pair: MakePair) -> None:
    for version, counted in (("0.32.0", False), ("0.33.0", True)):
        pair = await make_pair(connector="Mooncake", version=version)
        await prefill(pair)
        assert (await pair.decode(decode_params(pair))).text == EXPECTED
        await until(pair.is_clean)
        async with pair.session.get(f"{pair.p.url}/metrics") as response:
            page = read_metrics(await response.read())
        size = len(tokenize(PROMPT)) * pair.p.settings.kv_bytes_per_token
        assert (page.transfer.count, page.transfer_bytes) == ((1, size) if counted else (0, None))
        assert page.failed_transfers == (0 if counted else None)
