"""Histograms, and the sums of the workers' reports."""

from hypothesis import given
from hypothesis import strategies as st

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
