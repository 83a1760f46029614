"""Which load reports are published."""

import pytest

from pdx_proxy.balancing.engine_limits import EngineLimit
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.health.load_poller import must_publish

IDLE, BUSY, FULL = LoadReport(0, 0, 0.0), LoadReport(3, 0, 0.2), LoadReport(3, 9, 0.9)
CHANGES = [
    ({}, {}, False),
    ({}, {"a": IDLE}, True),
    ({"a": IDLE}, {"a": IDLE}, False),
    ({"a": IDLE}, {"a": BUSY}, True),
    ({"a": BUSY}, {"a": BUSY}, True),
    ({"a": BUSY}, {"a": FULL}, True),
    ({"a": BUSY}, {"a": IDLE}, True),
    ({"a": IDLE}, {}, True),
]


@pytest.mark.parametrize(("old", "new", "expected"), CHANGES)
def test_which_reports_are_published(old: dict[str, LoadReport], new: dict[str, LoadReport], expected: bool) -> None:
    assert must_publish(LoadReports(old), LoadReports(new)) is expected


def test_limits_and_silence_are_published() -> None:
    idle = LoadReports({"a": IDLE}, {"a": EngineLimit(5)})
    assert must_publish(idle, LoadReports({"a": IDLE}, {"a": EngineLimit(9)}))
    assert must_publish(LoadReports(), LoadReports(silent=frozenset("a")))
    assert not must_publish(idle, LoadReports({"a": IDLE}, {"a": EngineLimit(5)}))
