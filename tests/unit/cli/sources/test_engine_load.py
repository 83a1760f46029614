"""vLLM's /metrics -> the load of one engine."""

import pytest

from pdx_cli.sources.engine_load import EngineLoad, LoadFigures, compared, read_load
from pdx_cli.sources.observation import Tokens

PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.25
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0"} 1000.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0"} 500.0
# TYPE vllm:prompt_tokens_by_source counter
vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 900.0
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 100.0
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf"} 10.0
vllm:inter_token_latency_seconds_count{engine="0"} 10.0
vllm:inter_token_latency_seconds_sum{engine="0"} 0.5
"""
PER_REQUEST = """\
# TYPE vllm:request_time_per_output_token_seconds histogram
vllm:request_time_per_output_token_seconds_count{engine="0"} 4.0
vllm:request_time_per_output_token_seconds_sum{engine="0"} 0.1
"""


def test_a_page() -> None:
    assert read_load(PAGE, 0) == EngineLoad(3.0, 2.0, 0.25, 1000.0, 500.0, (0.5, 10.0), Tokens(1000.0, 900.0, 100.0))


def test_ranks_are_summed_or_separate() -> None:
    all_ranks, first, second = (read_load(PAGE, rank) for rank in (None, 0, 1))
    assert all_ranks is not None
    assert first is not None
    assert second is not None
    assert (all_ranks.running, first.running, second.running, second.tokens) == (4.0, 3.0, 1.0, None)


def test_the_time_per_output_token_of_requests_wins() -> None:
    load = read_load(PAGE + PER_REQUEST)
    assert load is not None
    assert load.token_seconds == (0.1, 4.0)


@pytest.mark.parametrize("page", ["", "# just a comment\n", 'http_requests_total{a="b"} 1.0\n'])
def test_a_page_of_another_program(page: str) -> None:
    assert read_load(page) == EngineLoad()


def test_a_page_that_is_no_metrics() -> None:
    assert read_load("<html>{") is None


def test_rates_between_two_samples() -> None:
    then = EngineLoad(prompt=1000, generated=500, token_seconds=(1.0, 10), tokens=Tokens(1000, 0, 1000))
    now = EngineLoad(2, 1, 0.5, 1400, 600, (1.4, 20), Tokens(2000, 500, 1500))
    found = compared(then, now, 2.0)
    assert (found.running, found.waiting, found.kv_usage) == (2, 1, 0.5)
    assert (found.prompt_rate, found.output_rate, found.remote) == (200.0, 50.0, 0.5)
    assert found.tpot == pytest.approx(0.04)


def test_a_restarted_engine_has_no_rate() -> None:
    found = compared(EngineLoad(prompt=1000, generated=500), EngineLoad(prompt=10, generated=5), 2.0)
    assert (found.prompt_rate, found.output_rate) == (None, None)
    assert compared(None, None, 1.0) == LoadFigures()
