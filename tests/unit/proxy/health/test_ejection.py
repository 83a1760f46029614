"""When a suspect endpoint is ejected, and for how long."""

from dataclasses import replace

import pytest

from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import Cause, Suspect
from pdx_proxy.health.ejection import FIRST_PAUSE, decide
from tests.unit.proxy.pools import BOTH, D, P, endpoint

NOW = 1000.0


def suspect(cause: Cause) -> Suspect:
    return Suspect("h:1", 1, "why", cause)


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        (Cause.LOST, State.SUSPECT),
        (Cause.TIMEOUT, State.COLD),
        (Cause.CONSECUTIVE_ERRORS, State.SUSPECT),
    ],
)
def test_an_ejected_endpoint_is_warmed_up_again(cause: Cause, state: State) -> None:
    decision = decide(endpoint(1), suspect(cause), [endpoint(1), endpoint(2)], NOW)
    errors = cause is Cause.CONSECUTIVE_ERRORS
    assert decision.cause is cause
    assert (decision.endpoint.state, decision.endpoint.reason) == (state, "why")
    assert (decision.endpoint.ejections, decision.pause) == (int(errors), FIRST_PAUSE if errors else 0.0)


OTHERS: list[tuple[str, list[Endpoint], bool]] = [
    ("alone", [], False),
    ("a warm D", [endpoint(2)], True),
    ("an aggregated engine", [endpoint(2, BOTH)], True),
    ("a cold D", [endpoint(2, state=State.COLD)], False),
    ("a P", [endpoint(2, P)], False),
]


@pytest.mark.parametrize(("others", "ejected"), [case[1:] for case in OTHERS], ids=[case[0] for case in OTHERS])
def test_errors_do_not_eject_the_last_engine(others: list[Endpoint], ejected: bool) -> None:
    one = endpoint(1)
    decision = decide(one, suspect(Cause.CONSECUTIVE_ERRORS), [one, *others], NOW)
    assert (decision.endpoint is not one) is ejected
    assert decision.cause is (Cause.CONSECUTIVE_ERRORS if ejected else Cause.OVERRIDDEN)
    assert decide(one, suspect(Cause.LOST), [one, *others], NOW).endpoint is not one, "a lost connection always does"


@pytest.mark.parametrize(("revision", "ejected"), [("a", True), ("b", False)])
def test_a_prefill_needs_a_substitute_of_its_revision(revision: str, ejected: bool) -> None:
    one, other = endpoint(1, P, revision="a"), endpoint(2, P, revision=revision)
    decision = decide(one, suspect(Cause.CONSECUTIVE_ERRORS), [one, other, endpoint(3, D)], NOW)
    assert (decision.endpoint is not one) is ejected


def test_the_pause_doubles_until_the_endpoint_is_steady() -> None:
    others = [endpoint(2)]
    for number in range(4):
        one = replace(endpoint(1, since=NOW - 1.0), ejections=number)
        decision = decide(one, suspect(Cause.CONSECUTIVE_ERRORS), others, NOW)
        assert (decision.pause, decision.endpoint.ejections) == (FIRST_PAUSE * 2**number, number + 1)
    steady = replace(endpoint(1, since=NOW - 61.0), ejections=3)
    assert decide(steady, suspect(Cause.CONSECUTIVE_ERRORS), others, NOW).pause == FIRST_PAUSE
