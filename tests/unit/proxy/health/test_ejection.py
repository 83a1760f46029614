"""When a suspect endpoint is ejected, and for how long."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_api.names import Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import INFERENCE, Cause, Suspect
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.health.ejection import FIRST_PAUSE, MAX_EJECTED_SHARE, decide
from pdx_proxy.health.registry import EndpointRegistry
from tests.unit.proxy.pools import BOTH, D, P, endpoint

NOW = 1000.0
EVIDENCE = sorted(set(Cause) - INFERENCE - {Cause.OVERRIDDEN})
INFERRED = sorted(INFERENCE)


def suspect(cause: Cause) -> Suspect:
    return Suspect("h:1", 1, "why", cause)


@pytest.mark.parametrize("cause", [*EVIDENCE, *INFERRED])
def test_an_ejected_endpoint_is_suspect_until_it_is_warmed_up(cause: Cause) -> None:
    decision = decide(endpoint(1), suspect(cause), [endpoint(1), endpoint(2)], NOW)
    inferred = cause in INFERENCE
    assert decision.cause is decision.endpoint.ejected_by is cause
    assert (decision.endpoint.state, decision.endpoint.reason) == (State.SUSPECT, "why")
    assert (decision.endpoint.ejections, decision.pause) == (int(inferred), FIRST_PAUSE if inferred else 0.0)


def gone(port: int, cause: Cause) -> Endpoint:
    """A D that is ejected."""
    return replace(endpoint(port, state=State.SUSPECT), ejected_by=cause)


OTHERS: list[tuple[str, list[Endpoint], bool]] = [
    ("alone", [], False),
    ("a warm D", [endpoint(2)], True),
    ("an aggregated engine", [endpoint(2, BOTH)], True),
    ("a cold D", [endpoint(2, state=State.COLD)], False),
    ("a P", [endpoint(2, P)], False),
    ("one of three is ejected", [endpoint(2), gone(3, INFERRED[0])], False),
    ("one of four is ejected", [endpoint(2), endpoint(3), gone(4, INFERRED[1])], True),
    ("one of three is hung", [endpoint(2), gone(3, Cause.STALLED)], True),
]


@pytest.mark.parametrize("cause", INFERRED)
@pytest.mark.parametrize(("others", "ejected"), [case[1:] for case in OTHERS], ids=[case[0] for case in OTHERS])
def test_inference_ejects_half_of_a_role_and_never_the_last(
    others: list[Endpoint], ejected: bool, cause: Cause
) -> None:
    one = endpoint(1)
    decision = decide(one, suspect(cause), [one, *others], NOW)
    assert (decision.endpoint is not one) is ejected
    assert decision.cause is (cause if ejected else Cause.OVERRIDDEN)
    for evidence in EVIDENCE:
        assert decide(one, suspect(evidence), [one, *others], NOW).endpoint is not one, "evidence has no limit"


@pytest.mark.parametrize(("revision", "ejected"), [("a", True), ("b", False)])
def test_a_prefill_needs_a_substitute_of_its_revision(revision: str, ejected: bool) -> None:
    one, other = endpoint(1, P, revision="a"), endpoint(2, P, revision=revision)
    decision = decide(one, suspect(Cause.CONSECUTIVE_ERRORS), [one, other, endpoint(3, D)], NOW)
    assert (decision.endpoint is not one) is ejected


def test_the_pause_doubles_until_the_endpoint_is_steady() -> None:
    others = [endpoint(2)]
    for number in range(4):
        one = replace(endpoint(1, since=NOW - 1.0), ejections=number)
        decision = decide(one, suspect(Cause.CONSECUTIVE_ERRORS), [one, *others], NOW)
        assert (decision.pause, decision.endpoint.ejections) == (FIRST_PAUSE * 2**number, number + 1)
    steady = replace(endpoint(1, since=NOW - 61.0), ejections=3)
    assert decide(steady, suspect(Cause.CONSECUTIVE_ERRORS), [steady, *others], NOW).pause == FIRST_PAUSE


ROLES = st.lists(st.sampled_from([P, D, BOTH]), min_size=1, max_size=9)
STEPS = st.lists(
    st.tuples(st.integers(0, 8), st.sampled_from([*EVIDENCE, *INFERRED, "warm-up succeeds", "warm-up fails"])),
    max_size=60,
)


@given(ROLES, STEPS)
def test_over_any_sequence_inference_is_bounded(roles: list[Role], steps: list[tuple[int, Cause | str]]) -> None:
    """After an ejection by inference at most half of the role's engines in use are ejected so, and one is warm."""
    specs = [EndpointSpec(Address("h", number), role) for number, role in enumerate(roles, 1)]
    registry = EndpointRegistry(specs, clock=lambda: NOW)
    for spec in specs:
        registry.warm_up_succeeded(registry.endpoint(spec.name))
    for number, step in steps:
        one = registry.endpoint(specs[number % len(specs)].name)
        if isinstance(step, Cause):
            registry.on_event(Suspect(one.name, one.generation, "why", step))
        elif step == "warm-up succeeds":
            registry.warm_up_succeeded(one)
        elif not one.warm:
            registry.warm_up_failed(one, step, down=False)
        after = registry.endpoint(one.name)
        peers = [e for e in registry.snapshot.everything if (e.role is P) is (one.role is P)]
        if step in INFERENCE and one.warm and not after.warm:
            inferred = sum(e.ejected_by_inference for e in peers)
            warm = sum(e.warm for e in peers)
            assert warm
            assert inferred <= MAX_EJECTED_SHARE * (inferred + warm)
        if step in EVIDENCE:
            assert not after.warm, "evidence has no limit"
        assert not (after.warm and after.ejected_by)


def test_panic_a_suspect_answers_while_none_is_warm() -> None:
    """An engine ejected on evidence still gets whole requests if it was the last one that answers clients."""
    one = decide(endpoint(1), suspect(Cause.TIMEOUT), [endpoint(1)], NOW).endpoint
    assert Snapshot.of([one, endpoint(2, P)]).decode == (one,)
    assert not Snapshot.of([one, endpoint(2, P)]).peers
    assert Snapshot.of([one, endpoint(2)]).decode == (endpoint(2),)
