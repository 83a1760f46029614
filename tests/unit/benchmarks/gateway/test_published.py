"""The pages state the newest published result of the benchmark."""

from pathlib import Path

import pytest

from benchmarks.gateway import published, report
from benchmarks.gateway.gateways import COMMIT, GATEWAYS
from benchmarks.gateway.rows import judge

ROOT = Path(__file__).parents[4]
RESULT = published.newest()


@pytest.mark.parametrize("page", published.texts(RESULT))
def test_pages_state_the_newest_result(page: str) -> None:
    """`python -m benchmarks.gateway.published` writes it."""
    assert published.stated((ROOT / page).read_text()) == published.texts(RESULT)[page]


def test_the_table_is_that_of_the_newest_result() -> None:
    verdicts = judge(RESULT["rounds"], [gateway.name for gateway in GATEWAYS if gateway.rust])
    assert report.table(verdicts) in (ROOT / "benchmarks/gateway/README.md").read_text()


def test_the_result_has_the_former_commit_and_both_routers() -> None:
    rows = {row["row"]: row for row in RESULT["rows"]}
    for connections in (8, 64):
        medians = rows[f"rps-settled-{connections}"]["medians"]
        assert {"pdx-defaults", f"pdx-{COMMIT}", "vllm-router", "sglang-router"} <= medians.keys()


def test_what_is_written_is_what_is_stated() -> None:
    page = (ROOT / "README.md").read_text()
    written = published.with_result(page, "other numbers")
    assert published.stated(written) == "other numbers"
    assert published.with_result(written, published.stated(page)) == page
