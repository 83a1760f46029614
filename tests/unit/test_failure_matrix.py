"""docs/failure-matrix.md is complete: whatever can fail has a row in every order and form.

That the test of each row exists is checked in component/test_failure_rows.py, which starts pytest.
"""

from itertools import product

import pytest

from pdx_api.names import PrefillFailure, Role
from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome, Settlement, ShedReason
from pdx_sim import FaultKind
from scripts.failures import BEGIN, failures
from tests.documents import ROOT
from tests.failure_matrix.row import ALL, MOONCAKE_ALL, PEERS, Case, Client, Phase, Wiring
from tests.failure_matrix.rows import matrix
from tests.mutations import MUTATIONS, Mutation
from tests.mutations.__main__ import PACKAGE

DOCUMENT = ROOT / "docs/failure-matrix.md"
CASES = [case for row in matrix() for case in row.cases()]
NO_FAILURE = {FaultKind.SLOW, FaultKind.LONG_PREFILL}
OF_THE_CORE = {FaultKind.HANG_CORE, FaultKind.SCALING, FaultKind.RETIRED}
"""They strike an engine, not a leg: the rows of tests/component/health/test_hung.py and serving/test_pauses.py."""
OF_THE_LINK = {FaultKind.BLOCK_TRANSFER, FaultKind.DROP_TRANSFER}
"""They strike between engines: tests/component/sim/transfer/test_pull.py."""
SAME_AT_PREFILL = {FaultKind.DIE_AFTER_EVENTS, FaultKind.DIE_IN_EVENT}
"""A P's answer is no stream: these are then the same as DIE_AFTER_HEAD."""
ONLY_AT_PREFILL = {FaultKind.NO_PARAMS}
ONLY_IN_STREAMS = {FaultKind.DIE_AFTER_EVENTS, FaultKind.DIE_IN_EVENT}


def test_the_document_shows_every_row() -> None:
    text = DOCUMENT.read_text()
    assert failures(text) == text, "run: make generate"
    table = text.partition(BEGIN)[2]
    assert sum(line.startswith("| ") for line in table.splitlines()) == len(matrix()) + len(Phase)
    assert len({row.id for row in matrix()}) == len(matrix())


def _struck(case: Case, role: Role) -> FaultKind | None:
    strike = case.row.strike
    return strike.kind if strike is not None and strike.role is role else None


def _cases() -> set[tuple[Role, FaultKind, Wiring, bool]]:
    found = set()
    for case in CASES:
        for role in (Role.PREFILL, Role.DECODE):
            kind = _struck(case, role)
            if kind is not None:
                found.add((role, kind, case.order, case.stream))
    return found


def test_whatever_an_engine_can_do_has_a_row() -> None:
    """Every failure of the simulator has a row for each role, in each order, with and without a stream.

    Each order of Mooncake has one of the two forms; together they have both.
    """
    required = {
        (role, kind, order, stream)
        for role, kind, order, stream in product((Role.PREFILL, Role.DECODE), FaultKind, Wiring, (False, True))
        if kind not in NO_FAILURE | OF_THE_CORE | OF_THE_LINK
        and not (role is Role.PREFILL and kind in SAME_AT_PREFILL)
        and not (role is Role.DECODE and kind in ONLY_AT_PREFILL)
        and not (role is Role.DECODE and kind in ONLY_IN_STREAMS and not stream)
    }
    found = _cases()
    assert {case for case in required if case[2] in ALL} - found == set()
    needed, present = ({case for case in cases if case[2] in MOONCAKE_ALL} for cases in (required, found))
    assert {case[:3] for case in needed} - {case[:3] for case in present} == set()
    assert {(role, kind, stream) for role, kind, _, stream in needed} - {(r, k, s) for r, k, _, s in present} == set()


def test_every_policy_has_a_row_for_every_reason() -> None:
    """Each reason for which a prefill is repeated, with each `onPrefillFailure`."""
    required = set(product(set(Reason) - {Reason.ERROR_EVENT, Reason.LOCAL}, ALL, (False, True), PrefillFailure))
    found = {
        (reason, case.order, case.stream, case.policy)
        for case in CASES
        if case.row.phase is Phase.PREFILL and case.row.strike is not None
        for reason in case.row.retries
    }
    # push: with Retry the attempt repeats the prefill of a P that fails once; only a P that keeps failing ends it
    assert required - found == set()


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.REFUSED, Outcome.REFUSED_BY_ENGINE}))
def test_every_outcome_has_a_row_in_every_order(outcome: Outcome) -> None:
    assert {case.order for case in CASES if outcome in case.row.outcomes} >= set(PEERS)


@pytest.mark.parametrize("name", [*Settlement, *Reason, *ShedReason])
def test_every_counter_has_a_row(name: str) -> None:
    assert any(name in {*row.settled, *row.retries, *row.counters.split()} for row in matrix())


def test_clients_leave_and_gateways_end_in_every_phase() -> None:
    for phrase in ("client leaves", "SIGTERM", "deleted"):
        for order, stream in product(PEERS, (False, True)):
            cases = [c for c in CASES if phrase in c.row.fails and (c.order, c.stream) == (order, stream)]
            assert {case.row.phase for case in cases} >= {Phase.PREFILL, Phase.DECODE, Phase.ANSWER}, phrase
    for order in MOONCAKE_ALL:
        cases = [c for c in CASES if c.row.fails.startswith("the client leaves") and c.order is order]
        assert {case.row.phase for case in cases} >= {Phase.PREFILL, Phase.DECODE, Phase.ANSWER}


def test_every_sight_is_some_rows() -> None:
    assert {row.client for row in matrix()} >= set(Client)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.breaks)
def test_what_is_broken_on_purpose_is_there(mutation: Mutation) -> None:
    """`make mutations` runs them; here they are only kept from going stale."""
    text = (PACKAGE / mutation.file).read_text()
    assert text.count(mutation.old) == 1
    compile(text.replace(mutation.old, mutation.new), mutation.file, "exec")
    assert mutation.test in {case.test for case in CASES}
