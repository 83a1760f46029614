"""A metrics page of vLLM -> one report."""

import pytest

from pdx_api.vllm_metrics import EngineMetrics, Mean, PromptTokens, Waiting, read_metrics, read_ranks, read_waiting
from pdx_sim.core.counters import Counts, metrics_text
from pdx_sim.settings import SimSettings

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a model"} 3.0
vllm:num_requests_running{engine="1",model_name="a model"} 4.0
vllm:num_requests_waiting{engine="0",model_name="a model"} 0.0
vllm:num_requests_waiting{engine="1",model_name="a model"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="a model",reason="capacity"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="a model",reason="deferred"} 2.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="a model",reason="capacity"} 77.0
vllm:kv_cache_usage_perc{engine="0",model_name="a model"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a model"} 7.5e-01
vllm:request_success_total{engine="0",finished_reason="stop",model_name="a model"} 4.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="a model"} 5.0
vllm:prefix_cache_hits_total{engine="0"} 100.0
vllm:prefix_cache_hits_total{engine="1"} 7.0
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 100.0
vllm:prompt_tokens_by_source_total{engine="0",source="local_cache_hit"} 50.0
vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 300.0
vllm:prompt_tokens_by_source_total{engine="1",source="local_compute"} 1e3
vllm:prompt_tokens_by_source_total{engine="1",source="external_kv_transfer"} 0.0
vllm:prompt_tokens_by_source_created{engine="1",source="external_kv_transfer"} 1.7e9
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf"} 10.0
vllm:inter_token_latency_seconds_count{engine="0"} 10.0
vllm:inter_token_latency_seconds_sum{engine="0"} 0.5
"""
PER_REQUEST = """\
vllm:request_time_per_output_token_seconds_count{engine="0"} 4.0
vllm:request_time_per_output_token_seconds_sum{engine="0"} 0.1
"""
FIRST = EngineMetrics(
    running=3,
    waiting=0,
    waiting_by_reason=Waiting(3, 2),
    kv_use=0.25,
    ended=9,
    prompt_sources=PromptTokens(450, 300, 100, 50),
    cache_hits=100,
    between_tokens=Mean(0.5, 10),
    output_token=Mean(0.5, 10),
)
SECOND = EngineMetrics(running=4, waiting=2, kv_use=0.75, prompt_sources=PromptTokens(1000, 0, 1000), cache_hits=7)


def test_the_ranks_of_an_engine() -> None:
    assert read_ranks(PAGE.encode(), (0, 1, 2)) == [FIRST, SECOND, EngineMetrics()]


def test_all_ranks_together() -> None:
    metrics = read_metrics(PAGE.encode())
    assert (metrics.running, metrics.waiting, metrics.kv_use, metrics.cache_hits) == (7, 2, 0.5, 107)
    assert metrics.prompt_sources == PromptTokens(1450, 300, 1100, 50)
    assert metrics.waiting_by_reason == read_waiting(PAGE.encode()) == Waiting(80, 2)


@pytest.mark.parametrize("page", [b"", b"\n", b"<html>", b"# just a comment\n", b'requests{a="b"} 1.0\n', b"\xff{"])
def test_a_page_of_something_else(page: bytes) -> None:
    assert read_metrics(page) == EngineMetrics()


@pytest.mark.parametrize("value", ["many", "NaN", "+Inf", ""])
def test_a_number_that_cannot_be_read_is_missing(value: str) -> None:
    page = PAGE.replace(" 3.0", f" {value}").replace(" 100.0", f" {value}").encode()
    metrics = read_metrics(page)
    assert (metrics.running, metrics.waiting_by_reason, metrics.prompt_sources) == (None, None, None)
    assert metrics.waiting == 2


def test_a_page_that_ends_early() -> None:
    assert read_metrics(PAGE[: PAGE.index('vllm:num_requests_running{engine="1"')].encode()) == EngineMetrics(running=3)


def test_the_transfers_of_mooncake() -> None:
    """The names are those of vLLM 0.33 (v1/mooncake/stats.py)."""
    numbers = {
        "xfer_time_seconds_sum": 0.5,
        "xfer_time_seconds_count": 4,
        "bytes_transferred_sum": 3e15,
        "num_failed_transfers_total": 1,
        "num_failed_recvs_total": 2,
        "num_kv_expired_reqs_total": 5,
    }
    page = "".join(f'vllm:mooncake_{name}{{engine="0"}} {value}\n' for name, value in numbers.items())
    found = read_metrics(page.encode())
    assert (found.transfer, found.transfer_bytes) == (Mean(0.5, 4), 3e15)
    assert (found.failed_transfers, found.expired) == (3, 5)
    assert not found.has_nixl
    assert read_metrics(page.replace("mooncake", "nixl").encode()).has_nixl


def test_the_time_per_output_token_of_requests_wins() -> None:
    metrics = read_metrics((PAGE + PER_REQUEST).encode())
    assert (metrics.output_token, metrics.between_tokens) == (Mean(0.1, 4.0), Mean(0.5, 10.0))


CONFIG = 'vllm:cache_config_info{block_size="16",engine="%d",kv_cache_size_tokens="%s",num_gpu_blocks="%s"} 1.0'
CACHE_SIZES: list[tuple[list[tuple[int, str, str]], int]] = [
    ([(0, "40000", "9999")], 40_000),
    ([(0, "None", "2500")], 40_000),
    ([(0, "None", "5000"), (1, "None", "5000")], 40_000),
    ([(0, "40000", "5000"), (1, "40000", "5000")], 40_000),
    ([(0, "None", "None")], 0),
    ([], 0),
]


@pytest.mark.parametrize(("lines", "tokens"), CACHE_SIZES)
def test_the_size_of_a_rank_s_cache(lines: list[tuple[int, str, str]], tokens: int) -> None:
    metrics = read_metrics("\n".join(CONFIG % line for line in lines).encode())
    assert metrics.cache_tokens == tokens
    assert metrics.cache_settings.get("block_size") == ("16" if lines else None)


def test_a_simulated_engine_reports_everything_that_it_counts() -> None:
    counts = Counts(prompt_tokens_local=100, prompt_tokens_external=300, prompt_tokens_found=50, generation_tokens=7)
    counts.running_now, counts.expired = 3, 2
    metrics = read_metrics(metrics_text(counts, SimSettings(num_blocks=1000, block_size=16)).encode())
    assert (metrics.cache_tokens, metrics.cache_hits, metrics.expired) == (16_000, 50, 2)
    assert (metrics.running, metrics.prompt_tokens, metrics.generated_tokens) == (3, 450, 7)
    assert metrics.prompt_sources == PromptTokens(450, 300, 100, 50)
