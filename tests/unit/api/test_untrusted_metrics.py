"""A metrics page of a broken or hostile engine -> a report whose numbers are in range, in bounded time."""

import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from pdx_api.vllm_metrics import MOST, MOST_BYTES, EngineMetrics, Mean, read_metrics, read_ranks, read_waiting
from tests.random_pages import random_page

RUNNING = 'vllm:num_requests_running{engine="%d"} %s\n'


def numbers(fields: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in fields.items():
        if isinstance(value, dict) and name != "cache_settings":
            yield from numbers(value)
        elif isinstance(value, int | float):
            yield name, value


def test_every_number_of_random_pages_is_in_range() -> None:
    rng, read = random.Random(3), 0
    for _ in range(1000):
        page = random_page(rng)
        read_waiting(page)
        for metrics in read_ranks(page, (None, 0, 1, 5)):
            for name, number in numbers(asdict(metrics)):
                assert 0.0 <= number <= (MOST_BYTES if name == "transfer_bytes" else MOST), (name, number, page)
                assert number == 0 or number >= 1e-9, (name, number, page)
                read += 1
            assert metrics.kv_use is None or metrics.kv_use <= 1.0
    assert read > 20_000, "most numbers of these pages are ordinary"


@pytest.mark.parametrize("value", ["1e308", "-1", "1.1e12", "1e309", "-Inf", "nan", "1" * 41, "0x1", "5 5e13"])
def test_a_number_out_of_range_makes_its_metric_unknown(value: str) -> None:
    page = RUNNING % (0, value) + RUNNING % (1, "3.0") + 'vllm:num_requests_waiting{engine="0"} 1.0\n'
    assert read_metrics(page.encode()) == EngineMetrics(waiting=1.0)
    assert read_metrics(page.encode(), 1) == EngineMetrics(running=3.0), "the other rank has its number"


def test_a_sum_out_of_range_is_unknown() -> None:
    page = "".join(RUNNING % (rank, "6e11") for rank in range(2)).encode()
    assert read_metrics(page).running is None
    assert [metrics.running for metrics in read_ranks(page, (0, 1))] == [6e11, 6e11]


def test_an_engine_may_move_a_terabyte_and_use_no_more_than_its_cache() -> None:
    page = b'vllm:nixl_bytes_transferred_sum{engine="0"} 7e15\nvllm:kv_cache_usage_perc{engine="0"} 1.5\n'
    metrics = read_metrics(page)
    assert (metrics.transfer_bytes, metrics.kv_use) == (7e15, None)


def test_a_count_that_is_almost_nothing_has_no_mean() -> None:
    page = b"vllm:e2e_request_latency_seconds_sum{} 1e12\nvllm:e2e_request_latency_seconds_count{} 1e-300\n"
    assert read_metrics(page).latency == Mean(1e12, 0.0)
    assert read_metrics(page).latency.mean is None


@pytest.mark.parametrize("blocks", ["9" * 15, "1" + "0" * 13])
def test_a_cache_of_an_impossible_size_is_unknown(blocks: str) -> None:
    page = f'vllm:cache_config_info{{block_size="{blocks}",num_gpu_blocks="{blocks}"}} 1.0'
    assert read_metrics(page.encode()).cache_tokens == 0


HUGE = {
    "one label": b"vllm:cache_config_info{" + b"a" * 8_000_000,
    "many quotes": b"vllm:cache_config_info{" + b'a="' * 2_000_000,
    "one number": b"vllm:num_requests_running{} " + b"9" * 8_000_000,
    "many lines": b"vllm:num_requests_running{} 1\n" * 300_000,
    "many comments": b"\n#" * 4_000_000,
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_huge_page_costs_little(kind: str) -> None:
    began = time.process_time()
    assert read_metrics(HUGE[kind]).running is None
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("line", ["", ',a="' + "b" * 300 + '"', ',a="' + "b" * 10_000 + '"'])
def test_the_lines_of_a_page_are_bounded_together(line: str) -> None:
    """Each is searched for every rank."""
    page = f'vllm:num_requests_running{{engine="0"{line}}} 1.0\n'
    fit = min(5000, (1 << 20) // len(page))
    assert read_metrics(page.encode() * fit, 0).running == fit
    assert read_metrics(page.encode() * (fit + 1), 0).running is None
