"""Reading an engine's metrics page."""

import pytest

from pdx_proxy.balancing.engine_limits import EngineSample
from pdx_proxy.balancing.load_reports import LoadReport
from pdx_proxy.engines.engine_metrics import PromptTokens, read_cache_tokens, read_load, read_prompt_tokens, read_sample
from pdx_sim.core.counters import Counts, metrics_text
from pdx_sim.settings import SimSettings

LOAD_PAGE = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a model"} 3.0
vllm:num_requests_running{engine="1",model_name="a model"} 4.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a model"} 0.0
vllm:num_requests_waiting{engine="1",model_name="a model"} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="a model",reason="capacity"} 77.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a model"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a model"} 7.5e-01
"""


def test_the_load_of_all_ranks() -> None:
    assert read_load(LOAD_PAGE) == LoadReport(7, 2, 0.5)


@pytest.mark.parametrize(("rank", "expected"), [(0, LoadReport(3, 0, 0.25)), (1, LoadReport(4, 2, 0.75)), (2, None)])
def test_the_load_of_one_rank(rank: int, expected: LoadReport | None) -> None:
    assert read_load(LOAD_PAGE, rank) == expected


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html>",
        LOAD_PAGE[:400],
        LOAD_PAGE.replace(b" 3.0", b" many"),
        LOAD_PAGE.replace(b" 3.0", b" NaN"),
        LOAD_PAGE[:-20] + b"+Inf",
    ],
)
def test_an_incomplete_page_has_no_load(page: bytes) -> None:
    assert read_load(page) is None


_NAME = "vllm:prompt_tokens_by_source_total"
TOKENS_PAGE = f"""\
# TYPE {_NAME} counter
{_NAME}{{engine="0",model_name="m",source="local_compute"}} 100.0
{_NAME}{{engine="0",model_name="m",source="local_cache_hit"}} 50.0
{_NAME}{{engine="0",model_name="m",source="external_kv_transfer"}} 300.0
{_NAME}{{engine="1",model_name="m",source="local_compute"}} 1e3
{_NAME}{{engine="1",model_name="m",source="external_kv_transfer"}} 0.0
vllm:prompt_tokens_by_source_created{{engine="1",source="external_kv_transfer"}} 1.7e9
""".encode()


@pytest.mark.parametrize(
    ("page", "rank", "expected"),
    [
        (TOKENS_PAGE, None, PromptTokens(1450.0, 300.0, 1100.0)),
        (TOKENS_PAGE, 1, PromptTokens(1000.0, 0.0, 1000.0)),
        (TOKENS_PAGE, 2, None),
        (b"<html>", None, None),
        (TOKENS_PAGE.replace(b" 100.0", b" many"), None, None),
    ],
)
def test_the_prompt_tokens_of_a_page(page: bytes, rank: int | None, expected: PromptTokens | None) -> None:
    assert read_prompt_tokens(page, rank) == expected


def test_a_sample_separates_requests_that_wait_for_their_kv() -> None:
    page = (
        b"\n# TYPE x gauge"
        b'\nvllm:num_requests_running{engine="0"} 5'
        b'\nvllm:num_requests_waiting{engine="0"} 7'
        b'\nvllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 4'
        b'\nvllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 3'
        b'\nvllm:kv_cache_usage_perc{engine="0"} 0.25'
        b'\nvllm:e2e_request_latency_seconds_count{engine="0"} 40'
        b'\nvllm:e2e_request_latency_seconds_sum{engine="0"} 80.5\n'
    )
    load = read_load(page)
    assert load is not None
    assert read_sample(page, load, 9.0) == EngineSample(9.0, 5, 4, 3, 0.25, 40, 80.5)
    assert read_sample(b"", load, 9.0) == EngineSample(9.0, 5, 7, 0, 0.25), "of an older vLLM"


CONFIG = (
    'vllm:cache_config_info{block_size="16",engine="%d",hash_block_size="8",'
    'kv_cache_size_tokens="%s",num_gpu_blocks="%s"} 1.0'
)
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
    page = "".join(f"\n{CONFIG % line}" for line in lines).encode()
    assert read_cache_tokens(page) == tokens


def test_cache_hits_are_those_of_the_rank() -> None:
    hits = b'\nvllm:prefix_cache_hits_total{engine="0"} 100.0\nvllm:prefix_cache_hits_total{engine="1"} 7.0\n'
    found = [read_load(LOAD_PAGE + hits, rank) for rank in (None, 0, 1)]
    assert [each.cache_hits for each in found if each] == [107, 100, 7]
    plain = read_load(LOAD_PAGE)
    assert plain is not None
    assert plain.cache_hits is None


def test_a_simulated_engine_reports_the_size_of_its_cache() -> None:
    page = metrics_text(Counts(), SimSettings(num_blocks=1000, block_size=16)).encode()
    assert read_cache_tokens(page) == 16_000
    report = read_load(page)
    assert report is not None
    assert (report.cache_tokens, report.cache_hits) == (16_000, 0.0)
