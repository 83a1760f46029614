"""What follows a failed attempt, by policy, outcome and attempts left."""

from typing import Any

import pytest

from pdx_api.names import PrefillFailure, Role
from pdx_proxy.endpoints.endpoint import pairing
from pdx_proxy.handoff.failures import HandoffFailure
from pdx_proxy.http.upstream.failures import ConnectFailure
from pdx_proxy.serving.retry import Retry
from pdx_proxy.telemetry.counters import LocalPrefillReason
from tests.unit.proxy.pools import endpoint

RETRY, LOCAL, FAIL = PrefillFailure.RETRY, PrefillFailure.LOCAL, PrefillFailure.FAIL
P, D = endpoint(1, Role.PREFILL), endpoint(2)
CAUSE = ConnectFailure("h", "refused")

# policy, outcome, attempts left before it -> attempts left, whether the next one may split
TABLE: list[tuple[PrefillFailure, str, int, int, bool | None]] = [
    (RETRY, "P fails", 3, 2, True),
    (RETRY, "P fails", 2, 1, False),
    (RETRY, "P fails", 1, 0, None),
    (RETRY, "D fails", 3, 2, True),
    (RETRY, "D fails", 2, 1, False),
    (RETRY, "D fails", 1, 0, None),
    (RETRY, "D is late", 3, 2, False),
    (RETRY, "D is late", 2, 1, False),
    (RETRY, "KV fails", 3, 2, False),
    (RETRY, "KV fails", 1, 1, False),
    (RETRY, "P refuses", 3, 2, False),
    (RETRY, "P refuses", 1, 1, False),
    (RETRY, "P stops", 3, 2, False),
    (RETRY, "P stops", 1, 1, False),
    (LOCAL, "P fails", 3, 2, False),
    (LOCAL, "P fails", 2, 1, False),
    (LOCAL, "P fails", 1, 0, None),
    (LOCAL, "D fails", 3, 2, True),
    (LOCAL, "D fails", 2, 1, False),
    (LOCAL, "D is late", 3, 2, False),
    (LOCAL, "KV fails", 2, 1, False),
    (LOCAL, "P refuses", 3, 2, False),
    (LOCAL, "P refuses", 1, 1, False),
    (LOCAL, "P stops", 3, 2, False),
    (FAIL, "P fails", 3, 0, None),
    (FAIL, "P fails", 2, 0, None),
    (FAIL, "P fails", 1, 0, None),
    (FAIL, "D fails", 3, 2, True),
    (FAIL, "D fails", 2, 1, True),
    (FAIL, "D fails", 1, 0, None),
    (FAIL, "D is late", 3, 2, False),
    (FAIL, "KV fails", 3, 2, True),
    (FAIL, "KV fails", 1, 0, None),
    (FAIL, "P refuses", 3, 2, False),
    (FAIL, "P refuses", 1, 1, False),
    (FAIL, "P stops", 3, 2, False),
]


def following(retry: Retry, outcome: str) -> Retry:
    if outcome in ("P refuses", "P stops"):
        return retry.after_refusal(LocalPrefillReason.REFUSED if outcome == "P refuses" else LocalPrefillReason.NOTHING)
    failed = P if outcome == "P fails" else D
    pair = pairing(P, D) if outcome == "KV fails" else None
    failure = HandoffFailure(failed, CAUSE, whole=outcome == "D is late", pair=pair)
    return retry.after_failure(failure, by_prefill=failed is P)


@pytest.mark.parametrize(("policy", "outcome", "left", "remain", "splits"), TABLE)
def test_table(policy: PrefillFailure, outcome: str, left: int, remain: int, splits: bool | None) -> None:
    retry = following(Retry(policy, left), outcome)
    assert retry.left == remain
    if splits is not None:
        assert retry.splits(True) is splits
    assert not retry.splits(False), "a request that cannot be divided is never split"


def test_the_first_attempt_may_split_even_if_it_is_the_only_one() -> None:
    assert Retry(RETRY, 1).splits(True)


@pytest.mark.parametrize(("outcome", "avoid", "last"), [("P fails", {P.name}, CAUSE), ("P refuses", set(), None)])
def test_only_an_engine_that_has_failed_is_avoided(outcome: str, avoid: set[str], last: Any) -> None:
    retry = following(Retry(RETRY, 3), outcome)
    assert retry.avoid == avoid
    assert retry.last is last


def test_what_one_attempt_has_shown_holds_for_all_later_ones() -> None:
    retry = following(following(following(Retry(RETRY, 5), "P fails"), "P refuses"), "D fails")
    assert retry.avoid == {P.name, D.name}
    assert retry.whole
    assert retry.refused is LocalPrefillReason.REFUSED


def test_one_attempt_after_a_hand_off_without_kv_is_free() -> None:
    after = following(Retry(RETRY, 3), "KV fails")
    assert after.pending.free
    assert after.pending.failed == pairing(P, D)
    later = following(after, "D fails")
    assert not later.pending.free
    assert later.pending.failed == pairing(P, D)
    assert not following(Retry(FAIL, 3), "KV fails").pending.free


# the dead, whether one is a D, attempts left before it -> attempts left
DEATHS: list[tuple[set[str], bool, int, int]] = [
    ({"p"}, False, 3, 1),
    ({"d"}, True, 3, 1),
    ({"d"}, True, 1, 0),
    ({"p", "d"}, True, 9, 0),
]


@pytest.mark.parametrize("policy", PrefillFailure)
@pytest.mark.parametrize(("dead", "of_decode", "left", "remain"), DEATHS)
def test_after_deaths(policy: PrefillFailure, dead: set[str], of_decode: bool, left: int, remain: int) -> None:
    retry = Retry(policy, left).after_failure(HandoffFailure(D, CAUSE), by_prefill=False)
    retry = retry.after_deaths(frozenset(dead), of_decode=of_decode)
    assert (retry.left, retry.is_deadly, retry.at_prefill) == (remain, len(dead) == 2, of_decode)
    assert retry.avoid >= dead
    assert not retry.splits(True), "one engine gets the request"


def test_deaths_of_two_attempts_count_together() -> None:
    retry = Retry(RETRY, 9).after_deaths(frozenset({"d"}), of_decode=True)
    assert not retry.is_deadly
    retry = retry.after_deaths(frozenset({"p"}), of_decode=False)
    assert (retry.is_deadly, retry.left, retry.at_prefill) == (True, 0, False)
