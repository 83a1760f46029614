"""Consecutive failures of one endpoint, by tables."""

from dataclasses import replace

import pytest

from pdx_proxy.endpoints.events import Cause, EndpointEvent, Suspect
from pdx_proxy.engines.outlier_detection import OutlierDetector
from tests.unit.proxy.pools import endpoint

SEQUENCES = [
    ("five consecutive", 5, "fffff", [5]),
    ("four are not enough", 5, "ffff", []),
    ("a success resets the count", 5, "ffff.fff", []),
    ("and another begins", 3, "ff.ffff", [6]),
    ("each is reported once", 2, "fffff", [2, 4]),
    ("the first", 1, ".f", [2]),
    ("never", 0, "f" * 20, []),
    ("not its own", 3, "f-f-f-f-", []),
    ("two of three were its own", 3, "fff-ff", [3]),
    ("nothing to forgive", 2, "-f-ff", [5]),
]


@pytest.mark.parametrize(("limit", "answers", "reported"), [c[1:] for c in SEQUENCES], ids=[c[0] for c in SEQUENCES])
def test_consecutive_failures(limit: int, answers: str, reported: list[int]) -> None:
    events: list[EndpointEvent] = []
    outliers, one = OutlierDetector(limit, events.append), endpoint(1)
    found = []
    for number, answer in enumerate(answers, 1):
        before = len(events)
        if answer == "f":
            outliers.failed(one, "status 500")
        elif answer == "-":
            outliers.forgive(one)
        else:
            outliers.succeeded(one)
        found += [number] * (len(events) - before)
    assert found == reported
    reason = f"{limit} failures in a row, the last: status 500"
    assert set(events) <= {Suspect("h:1", 1, reason, Cause.CONSECUTIVE_ERRORS)}


def test_failures_belong_to_one_generation() -> None:
    events: list[EndpointEvent] = []
    outliers, one, other = OutlierDetector(2, events.append), endpoint(1), endpoint(2)
    for each in (one, other, replace(one, generation=2)):
        outliers.failed(each, "")
    assert not events
    outliers.keep({("h:1", 2)})
    assert list(outliers.counts) == [("h:1", 2)]
