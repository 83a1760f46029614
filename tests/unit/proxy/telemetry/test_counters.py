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


@given(st.permutations(range(5)), st.lists(st.floats(0, 1e6), min_size=5, max_size=5))
def test_sums_of_seconds_are_equal_in_any_order(order: list[int], seconds: list[float]) -> None:
    """Otherwise a sum could decrease when a worker ends and its report moves to another place."""
    reports = []
    for each in seconds:
        counters = Counters()
        counters.phases["total"].observe(each)
        reports.append(counters.report({}))
    total = add_reports(reports)["phases"]["total"]["total"]
    moved = [reports[number] for number in order]
    assert add_reports([add_reports(moved[:2]), *moved[2:]])["phases"]["total"]["total"] == total
    assert sum(seconds) - 1e-5 < total <= sum(seconds) + 1e-5
