"""Reading what an engine says of its load, and when it is news."""

import pytest

from pdx_api.names import Policy, Role
from pdx_proxy.balancing.load_reports import LoadReport
from pdx_proxy.config.settings import Choosing
from pdx_proxy.health.load_poller import asked_roles, is_news, read_measure

PAGE = b"""\
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


def test_ranks_are_one_engine() -> None:
    assert read_measure(PAGE) == LoadReport(7, 2, 0.5)


@pytest.mark.parametrize(("rank", "wanted"), [(0, LoadReport(3, 0, 0.25)), (1, LoadReport(4, 2, 0.75)), (2, None)])
def test_a_rank_by_itself(rank: int, wanted: LoadReport | None) -> None:
    assert read_measure(PAGE, rank) == wanted


@pytest.mark.parametrize(
    "page",
    [b"", b"<html>", PAGE[:400], PAGE.replace(b" 3.0", b" many"), PAGE.replace(b" 3.0", b" NaN"), PAGE[:-20] + b"+Inf"],
)
def test_half_a_page_says_nothing(page: bytes) -> None:
    assert read_measure(page) is None


IDLE, BUSY, FULL = LoadReport(0, 0, 0.0), LoadReport(3, 0, 0.2), LoadReport(3, 9, 0.9)
NEWS = [
    ({}, {}, False),
    ({}, {"a": IDLE}, True),
    ({"a": IDLE}, {"a": IDLE}, False),
    ({"a": IDLE}, {"a": BUSY}, True),
    ({"a": BUSY}, {"a": BUSY}, True),
    ({"a": BUSY}, {"a": FULL}, True),
    ({"a": BUSY}, {"a": IDLE}, True),
    ({"a": IDLE}, {}, True),
]


@pytest.mark.parametrize(("old", "new", "wanted"), NEWS)
def test_what_is_news(old: dict[str, LoadReport], new: dict[str, LoadReport], wanted: bool) -> None:
    assert is_news(old, new) is wanted


ROLES: list[tuple[Choosing, set[Role]]] = [
    (Choosing(), set()),
    (Choosing(Policy.SESSION_AFFINITY, Policy.PREFIX_AFFINITY), set()),
    (Choosing(prefill_policy=Policy.LEAST_LOAD), {Role.PREFILL}),
    (Choosing(decode_policy=Policy.LEAST_LOAD), {Role.DECODE, Role.AGGREGATED}),
]


@pytest.mark.parametrize(("choosing", "roles"), ROLES)
def test_only_engines_that_a_policy_compares_are_asked(choosing: Choosing, roles: set[Role]) -> None:
    assert asked_roles(choosing) == roles
