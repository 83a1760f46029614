"""Wire format and counters."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_proxy.config.settings import Address
from pdx_proxy.http.messages import answer_head, request_head
from pdx_proxy.http.upstream.connection_pool import ConnectionPool
from pdx_proxy.telemetry.counters import BUCKETS, Counters, Histogram, Outcome, add_reports


@given(st.lists(st.floats(0, 500), max_size=30))
def test_a_histogram_counts_each_once(seconds: list[float]) -> None:
    histogram = Histogram()
    for each in seconds:
        histogram.observe(each)
    assert sum(histogram.counts) == len(seconds)
    for index, bound in enumerate(BUCKETS):
        assert sum(histogram.counts[: index + 1]) == sum(each <= bound for each in seconds)


@given(st.lists(st.lists(st.sampled_from(Outcome), max_size=5), max_size=4))
def test_reports_add_up(workers: list[list[Outcome]]) -> None:
    reports = []
    for outcomes in workers:
        counters = Counters(requests_in_flight=1)
        for outcome in outcomes:
            counters.outcomes[outcome] += 1
            counters.retried(outcome)
        reports.append(counters.report({"d": 2}))
    total = add_reports(reports)
    every = [outcome for outcomes in workers for outcome in outcomes]
    assert total["outcomes"] == {outcome.value: every.count(outcome) for outcome in Outcome}
    assert sum(total["retries"].values()) == len(every)
    assert total["inFlight"]["requests"] == len(workers)
    assert total["legs"] == ({"d": 2 * len(workers)} if workers else {})


def test_a_request_as_bytes() -> None:
    assert request_head("POST", "/p", "h:1", [("A", "b")], 2) == (
        b"POST /p HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
    )
    assert request_head("GET", "/p", "h:1", [], 0) == b"GET /p HTTP/1.1\r\nHost: h:1\r\n\r\n"


DROPPED = [b"connection", b"content-length", b"date", b"keep-alive", b"server", b"transfer-encoding", b"x-request-id"]


def test_an_answers_head() -> None:
    headers = [*((name, b"theirs") for name in DROPPED), (b"x-mine", b"1")]
    assert answer_head(404, headers, {"x": "y"}) == b"HTTP/1.1 404 Not Found\r\nx-mine: 1\r\nx: y\r\n\r\n"
    assert answer_head(599, [], {}) == b"HTTP/1.1 599 \r\n\r\n"


@pytest.mark.parametrize(("host", "text"), [("127.0.0.1", "127.0.0.1:1"), ("::1", "[::1]:1"), ("name", "name:1")])
def test_an_address_as_text(host: str, text: str) -> None:
    assert str(Address(host, 1)) == text


async def test_a_connection_that_is_over_at_once_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ConnectionPool(idle_seconds=1, connect_seconds=1)

    async def create_connection(factory: Any, *_: Any) -> None:
        factory().connection_lost(None)

    monkeypatch.setattr(pool, "_loop", SimpleNamespace(create_connection=create_connection, time=lambda: 0.0))
    connection = await pool.connect(Address("h", 1), "d")
    assert connection.lost is not None
    assert not pool._all
