"""What D's count of their prompt tokens by source, read and compared."""

from collections import deque

import pytest

from pdx_proxy.health.transfer_share import Arrived, Count, arrived, counted, read_count

_NAME = "vllm:prompt_tokens_by_source_total"
PAGE = f"""\
# TYPE {_NAME} counter
{_NAME}{{engine="0",model_name="m",source="local_compute"}} 100.0
{_NAME}{{engine="0",model_name="m",source="local_cache_hit"}} 50.0
{_NAME}{{engine="0",model_name="m",source="external_kv_transfer"}} 300.0
{_NAME}{{engine="1",model_name="m",source="local_compute"}} 1e3
{_NAME}{{engine="1",model_name="m",source="external_kv_transfer"}} 0.0
vllm:prompt_tokens_by_source_created{{engine="1",source="external_kv_transfer"}} 1.7e9
""".encode()


@pytest.mark.parametrize(
    ("page", "rank", "wanted"),
    [
        (PAGE, None, Count(1450.0, 300.0, 1100.0)),
        (PAGE, 1, Count(1000.0, 0.0, 1000.0)),
        (PAGE, 2, None),
        (b"<html>", None, None),
        (PAGE.replace(b" 100.0", b" many"), None, None),
    ],
)
def test_a_page_is_read(page: bytes, rank: int | None, wanted: Count | None) -> None:
    assert read_count(page, rank) == wanted


def test_what_came_lies_between_the_first_and_the_last_of_a_few_counts() -> None:
    counts: deque[Count] | None = None
    for prompt in range(0, 900, 100):
        counts = counted(counts, Count(prompt, prompt / 2, prompt / 4))
    assert counts is not None
    assert arrived(counts) == Arrived(300, 150, 75)


def test_an_engine_that_counts_from_the_beginning_is_a_new_one() -> None:
    counts = counted(counted(None, Count(500.0, 500.0, 0.0)), Count(40.0, 0.0, 40.0))
    assert arrived(counts) == Arrived(0, 0, 0)
