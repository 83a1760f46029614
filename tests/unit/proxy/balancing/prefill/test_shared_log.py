"""The rings that workers share: order, limits, what is overwritten, bytes that are not there yet."""

import mmap
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdx_proxy.balancing.prefill.shared_log import RING_BYTES, EndRecord, SentRecord, SharedLog, SharedLogMemory
from pdx_proxy.payload.prompt_blocks import MAX_BLOCKS, PromptBlocks


def prompt(blocks: int, seed: int = 0) -> PromptBlocks:
    rng = random.Random(seed)
    return PromptBlocks(
        [rng.getrandbits(64) for _ in range(blocks)], [512 * (n + 1) for n in range(blocks)], 512 * blocks
    )


def logs(workers: int = 2) -> tuple[mmap.mmap, list[SharedLog]]:
    memory = mmap.mmap(-1, workers * RING_BYTES)
    return memory, [SharedLog(memory, number, workers) for number in range(workers)]


def sent(record: object) -> SentRecord:
    assert isinstance(record, SentRecord)
    return record


def end(record: object) -> EndRecord:
    assert isinstance(record, EndRecord)
    return record


@pytest.mark.parametrize("blocks", [0, 1, MAX_BLOCKS])
def test_the_others_read_what_a_worker_writes(blocks: int) -> None:
    _, (one, other, third) = logs(3)
    number = one.sent(7, prompt(blocks), 12.5, True)
    one.ended(number, 13.5)
    dropped = one.sent(8, prompt(blocks), 14.0, False)
    one.ended(dropped, None)
    for reader in (other, third):
        writers, records = zip(*reader.read(), strict=True)
        assert set(writers) == {0}
        first, second = sent(records[0]), sent(records[2])
        assert (first.number, first.slot, first.at, first.learns) == (number, 7, 12.5, True)
        assert (first.prompt.hashes, first.prompt.ends, first.prompt.tokens) == (
            prompt(blocks).hashes,
            prompt(blocks).ends,
            512 * blocks,
        )
        assert (second.number, second.slot, second.learns) == (dropped, 8, False)
        assert (end(records[1]).number, end(records[1]).answered_at) == (number, 13.5)
        assert (end(records[3]).number, end(records[3]).answered_at) == (dropped, None)
        assert reader.read() == []
    assert one.read() == [], "a worker does not read its own records"


@given(st.lists(st.tuples(st.integers(0, MAX_BLOCKS), st.booleans()), max_size=200), st.integers(0, 400))
@settings(max_examples=30, deadline=None)
def test_records_keep_their_order_round_the_ring(writes: list[tuple[int, bool]], before: int) -> None:
    """`before` longest prompts move the beginning to anywhere in the ring."""
    _, (one, other) = logs()
    for _ in range(before):
        one.sent(0, prompt(MAX_BLOCKS), 0.0, True)
        other.read()
    written, found = [], []
    for blocks, reads in writes:
        written.append(one.sent(1, prompt(blocks), 1.0, True))
        if reads:
            found += [sent(record).number for _, record in other.read()]
    assert found + [sent(record).number for _, record in other.read()] == written


def test_a_reader_that_was_overtaken_starts_again() -> None:
    _, (one, other) = logs()
    for _ in range(400):
        one.sent(1, prompt(MAX_BLOCKS), 1.0, True)
    assert other.read() == [(0, None)]
    number = one.sent(1, prompt(3), 1.0, True)
    assert [sent(record).number for _, record in other.read()] == [number]


def test_bytes_that_are_not_there_yet_are_read_later() -> None:
    memory, (one, other) = logs()
    one.sent(1, prompt(2), 1.0, True)
    at = 8 + 30
    there, memory[at] = memory[at], memory[at] ^ 0xFF
    assert other.read() == []
    memory[at] = there
    assert len(other.read()) == 1


def test_a_new_worker_begins_with_what_comes_next() -> None:
    owner = SharedLogMemory(2)
    one, other = (SharedLog.over(os.dup(owner.fd), number, 2) for number in range(2))
    one.sent(1, prompt(1), 1.0, True)
    late = SharedLog.over(os.dup(owner.fd), 1, 2)
    assert late.read() == []
    owner.forget(0)
    assert [record is None for _, record in other.read()] == [False, True]
    assert late.read() == [(0, None)]
    owner.close()
