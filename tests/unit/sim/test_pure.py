"""Tokens, text, blocks, leases, faults: values in, values out."""

import dataclasses
import math
import random

import pytest

from pdx_sim import Fault, FaultKind, Faults, Leg, SimSettings, expected_text, tokenize
from pdx_sim.core.blocks import BlockPool, blocks_for
from pdx_sim.core.tokens import chat_tokens, detokenize, pieces
from pdx_sim.faults import fault_of
from pdx_sim.settings import BOUNDS, OutOfBoundsError
from pdx_sim.transfer.leases import Leases, Settled


@pytest.mark.parametrize("text", ["", "a", "abcd", "abcde", "Grüße, 世界", "x" * 4096])
def test_tokens_give_their_text_back(text: str) -> None:
    tokens = tokenize(text)
    assert detokenize(tokens) == text
    assert len(tokens) == blocks_for(len(text.encode()), 4)


def test_a_longer_answer_extends_a_shorter_one() -> None:
    prompt = tokenize("hello")
    assert expected_text(prompt, 9).startswith(expected_text(prompt, 4))
    assert len(pieces("x", 7)) == 7
    assert expected_text(tokenize("other"), 4) != expected_text(prompt, 4)


def test_chat_content_may_come_in_parts() -> None:
    plain = chat_tokens([{"role": "user", "content": "hi"}])
    assert plain == chat_tokens([{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
    assert plain != chat_tokens([{"role": "system", "content": "hi"}])


def test_pool_gives_all_or_none_and_takes_all_back() -> None:
    pool = BlockPool(10)
    assert pool.take("a", 6)
    assert not pool.take("b", 5)
    assert pool.take("a", 1)
    assert (pool.held, pool.free_blocks, pool.owners) == (7, 3, {"a": 7})
    assert (pool.free("a"), pool.free("a"), pool.held) == (7, 0, 0)


def test_lease_ends_unless_extended_or_taken() -> None:
    leases = Leases(30.0)
    for name in ("cmpl-a-0-11111111", "cmpl-b-0-11111111", "cmpl-c-0-11111111"):
        leases.park(name, "digest", 20, 2, now=0.0)
    assert leases.extend("cmpl-a-0-11111111", now=20.0)
    assert leases.take("cmpl-b-0-11111111") is not None
    assert leases.blocks == 4
    assert [parked.internal_id for parked in leases.expire(30.0)] == ["cmpl-c-0-11111111"]
    assert [parked.internal_id for parked in leases.expire(40.0)] == ["cmpl-a-0-11111111"]
    assert (leases.blocks, len(leases)) == (0, 0)
    assert leases.settled("cmpl-b-0-11111111") is Settled.TAKEN
    assert leases.settled("cmpl-c-0-11111111") is Settled.EXPIRED
    assert leases.settled("cmpl-x-0-11111111") is None


def test_early_heartbeat_does_not_shorten_a_lease() -> None:
    leases = Leases(30.0)
    leases.park("cmpl-a-0-11111111", "digest", 20, 2, now=0.0)
    leases.extend("cmpl-a-0-11111111", now=1.0)
    assert not leases.expire(29.0)


def test_parked_is_found_by_its_meeting_key() -> None:
    leases = Leases(30.0)
    leases.park("cmpl-a-0-11111111", "digest", 20, 2, now=0.0)
    assert leases.find("cmpl-a-0") is not None
    leases.take("cmpl-a-0-11111111")
    assert leases.find("cmpl-a-0") is None


def test_fault_strikes_its_leg_as_often_as_it_says() -> None:
    faults = Faults(random.Random(0))
    faults.add(FaultKind.STATUS, count=2, leg=Leg.DECODE, status=503)
    struck = [faults.take(leg) is not None for leg in (Leg.PREFILL, Leg.DECODE, Leg.PLAIN, Leg.DECODE, Leg.DECODE)]
    assert struck == [False, True, False, True, False]


def test_fault_with_a_probability_repeats_with_its_seed() -> None:
    def strikes() -> list[bool]:
        faults = Faults(random.Random(7))
        faults.add(FaultKind.ABORT, count=None, probability=0.5)
        return [faults.take(Leg.PLAIN) is not None for _ in range(50)]

    assert strikes() == strikes()
    assert 10 < sum(strikes()) < 40


def test_fault_from_json() -> None:
    fields = {"kind": "die_in_event", "events": 3, "leg": "decode", "count": None}
    assert fault_of(fields) == Fault(FaultKind.DIE_IN_EVENT, count=None, leg=Leg.DECODE, events=3)
    with pytest.raises(ValueError, match="nonsense"):
        fault_of({"kind": "nonsense"})


def test_settings_refuse_what_cannot_run() -> None:
    with pytest.raises(ValueError, match="write one of: NIXL, "):
        SimSettings(connector="Pigeon")
    with pytest.raises(ValueError, match="max_model_len"):
        SimSettings(num_blocks=1)


@pytest.mark.parametrize(
    ("field", "value", "possible"),
    [
        *((name, 0, "1 or more") for name in ("prefill_chunk", "prefill_slots", "max_running", "max_model_len")),
        *((name, 0, "1 or more") for name in ("num_blocks", "block_size")),
        *((name, -1, "0 or more") for name in ("answer_tokens", "record", "transfer_seconds", "shutdown_seconds")),
        *((name, math.nan, "0 or more") for name in ("prefill_base_seconds", "decode_token_seconds")),
        ("prefill_token_seconds", math.inf, "0 or more"),
        ("lease_seconds", 0.0, "0.001 or more"),
        *(("jitter", value, "a number from 0 to 1") for value in (5.0, -0.1, math.nan)),
        *((name, value, "a number from 0 to 65535") for name in ("port", "side_channel_port") for value in (-1, 65536)),
    ],
)
def test_settings_name_the_field_out_of_bounds(field: str, value: float, possible: str) -> None:
    with pytest.raises(OutOfBoundsError) as refused:
        SimSettings(**{field: value})  # type: ignore[arg-type]
    assert str(refused.value) == f"{field} is {value}; write {possible}"


def test_every_number_has_bounds() -> None:
    numbers = {f.name for f in dataclasses.fields(SimSettings) if type(f.default) in (int, float)}
    assert numbers - {"seed"} == set(BOUNDS)


def test_api_and_side_channel_need_two_addresses() -> None:
    with pytest.raises(ValueError, match=r"both on 127\.0\.0\.1:8000; name two addresses"):
        SimSettings(kv_both=True, port=8000, side_channel_port=8000)
    assert SimSettings(port=8000, side_channel_port=8000).port == 8000, "an engine without a connector has no channel"
    assert SimSettings(kv_both=True).port == 0
