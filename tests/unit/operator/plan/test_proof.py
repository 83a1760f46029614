"""Whether a new revision may replace another one, by what the gateways report about its pairs."""

import pytest

from pdx_api.names import Role
from pdx_api.verification import Broken, Cause, Finding, Verdict
from pdx_operator.observed.workloads import ObservedPool
from pdx_operator.plan.proof import PROOF_SECONDS, Unproven, paired, unproven


def broken(revision: str) -> Broken:
    return Broken(
        f"m-prefill-{revision}-1-x", f"m-decode-{revision}-1-y", "the decode engine has computed it", Cause.PORTS
    )


def finding(*revisions: str) -> Finding:
    if not revisions:
        return Finding(Verdict.VERIFIED, pairs=2, possible=2)
    pairs = tuple(broken(revision) for revision in revisions)
    return Finding(Verdict.BROKEN, possible=2, broken=pairs, broken_pairs=len(pairs))


NOT_REPORTED = Finding(Verdict.UNKNOWN, "x", possible=2, broken=(broken("new"),))


@pytest.mark.parametrize(
    ("found", "age", "expected"),
    [
        pytest.param(None, 0.0, None, id="no gateway reports"),
        pytest.param(finding(), 5.0, Unproven(), id="no time for a probe yet"),
        pytest.param(finding(), PROOF_SECONDS, None, id="no failure in time"),
        pytest.param(finding("new"), 5.0, Unproven(broken("new")), id="broken at once"),
        pytest.param(finding("new"), 9 * PROOF_SECONDS, Unproven(broken("new")), id="broken later"),
        pytest.param(finding("old"), PROOF_SECONDS, None, id="another revision is broken"),
        pytest.param(finding("old", "new"), PROOF_SECONDS, Unproven(broken("new")), id="both are broken"),
        pytest.param(NOT_REPORTED, PROOF_SECONDS, None, id="probes cannot tell"),
    ],
)
def test_a_new_pair_is_proven_by_time_without_a_failed_probe(
    found: Finding | None, age: float, expected: Unproven | None
) -> None:
    assert unproven("m", "new", found, {"new": 100.0}, 100.0 + age) == expected


def test_without_a_ready_pair_there_is_nothing_to_prove() -> None:
    assert unproven("m", "new", finding("new"), {"old": 0.0}, 5.0) is None


def test_a_pair_needs_both_roles_of_one_revision() -> None:
    def pool(role: Role, revision: str, ready: int) -> ObservedPool:
        return ObservedPool(f"m-{role}-{revision}", role, revision, 1, ready, True)

    pools = [
        pool(Role.PREFILL, "a", 1),
        pool(Role.DECODE, "a", 1),
        pool(Role.PREFILL, "b", 1),
        pool(Role.DECODE, "b", 0),
    ]
    assert paired(pools) == {"a"}
