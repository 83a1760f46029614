"""When consecutive errors make an engine suspect: a table. And which engine a failure is attributed to."""

from dataclasses import replace

import pytest

from pdx_api.names import Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import Cause, Suspect
from pdx_proxy.engines.attribution import Culprit, attribute
from pdx_proxy.engines.outlier_detection import OutlierDetector
from pdx_proxy.http.upstream.failures import BadAnswer, DeadlineExceeded, EngineFailure, LostConnection, Reason


def endpoint(port: int, role: Role = Role.DECODE) -> Endpoint:
    return Endpoint(EndpointSpec(Address("h", port), role), State.WARM, generation=1)


ERRORS = [
    ("five", 5, "fffff", [5]),
    ("four are not enough", 5, "ffff", []),
    ("a success resets", 5, "ffff.fff", []),
    ("and counting starts again", 3, "ff.ffff", [6]),
    ("each is reported once", 2, "fffff", [2, 4]),
    ("the first", 1, ".f", [2]),
    ("never", 0, "f" * 20, []),
    ("not its own", 3, "f-f-f-f-", []),
    ("two of three were its own", 3, "fff-ff", [3]),
    ("nothing to forgive", 2, "-f-ff", [5]),
]


@pytest.mark.parametrize(("limit", "answers", "reported"), [c[1:] for c in ERRORS], ids=[c[0] for c in ERRORS])
def test_consecutive_errors(limit: int, answers: str, reported: list[int]) -> None:
    events: list[Suspect] = []
    outliers, one = OutlierDetector(limit), endpoint(1)
    found = []
    for number, answer in enumerate(answers, 1):
        if answer == "f":
            suspect = outliers.failed(one, "status 500")
            if suspect is not None:
                events.append(suspect)
                found.append(number)
        elif answer == "-":
            outliers.forgive(one)
        else:
            outliers.succeeded(one)
    assert found == reported
    reason = f"{limit} consecutive errors, the last: status 500"
    assert set(events) <= {Suspect("h:1", 1, reason, Cause.CONSECUTIVE_ERRORS)}


def test_counts_belong_to_one_generation() -> None:
    outliers, one, other = OutlierDetector(2), endpoint(1), endpoint(2)
    for each in (one, other, replace(one, generation=2)):
        assert outliers.failed(each, "") is None
    outliers.keep({("h:1", 2)})
    assert list(outliers.counts) == [("h:1", 2)]


FAILURES: list[tuple[EngineFailure, Culprit]] = [
    (LostConnection("h:2", "lost"), Culprit.DECODE),
    (DeadlineExceeded("h:2", "late"), Culprit.DECODE),
    (BadAnswer("h:2", "aborted", Reason.ABORT, 503, b""), Culprit.DECODE),
    (BadAnswer("h:2", "full", Reason.STATUS, 503, b""), Culprit.NONE),
    (BadAnswer("h:2", "status 500", Reason.STATUS, 500, b""), Culprit.EITHER),
    (BadAnswer("h:2", "error event", Reason.ERROR_EVENT, 500, b""), Culprit.EITHER),
]


@pytest.mark.parametrize(("failure", "culprit"), FAILURES)
def test_attribution(failure: EngineFailure, culprit: Culprit) -> None:
    assert attribute(failure) is culprit
