"""Pairs within which KV does not move are suspended, and return when a probe moves KV."""

from pdx_proxy.endpoints.endpoint import Pairing
from pdx_proxy.verification.suspension import WATCH_SECONDS, Suspensions

PAIRS = {(f"p{p}", 1, f"d{d}", 1) for p in range(3) for d in range(3)}
PAIR = ("p0", 1, "d0", 1)
NONE: set[Pairing] = set()
OTHERS = {pair for pair in PAIRS if pair != PAIR and (pair[:2] == PAIR[:2] or pair[2:] == PAIR[2:])}


def found(pairs: Suspensions) -> tuple[set[Pairing], set[Pairing]]:
    """The watched and the suspended pairs."""
    return set(pairs.watched), set(pairs.suspended)


def test_a_failed_hand_off_suspends_its_pair_until_kv_moves() -> None:
    pairs = Suspensions()
    pairs.fail(PAIR, 10.0)
    assert found(pairs) == ({PAIR}, {PAIR})
    pairs.moved(PAIR)
    assert found(pairs) == (NONE, NONE)
    pairs.fail(PAIR, 11.0)
    pairs.handed_over(PAIR)
    assert found(pairs) == (NONE, NONE)


def test_a_hand_off_that_fails_again_and_again_suspends_the_other_pairs_of_its_engines() -> None:
    pairs = Suspensions()
    pairs.fail(PAIR, 10.0)
    pairs.fail(PAIR, 12.9)
    pairs.advance(PAIRS, 10.0 + WATCH_SECONDS)
    assert found(pairs) == (OTHERS, {PAIR})


def test_a_slow_hand_off_alone_suspends_nothing() -> None:
    pairs = Suspensions()
    pairs.watch(PAIR, 10.0)
    pairs.advance(PAIRS, 10.0 + WATCH_SECONDS - 0.1)
    assert found(pairs) == ({PAIR}, NONE)


def test_a_watched_pair_that_moves_no_kv_is_suspended_and_its_engines_other_pairs_are_watched() -> None:
    pairs = Suspensions()
    pairs.watch(PAIR, 10.0)
    pairs.watch(PAIR, 12.0)
    pairs.advance(PAIRS, 10.0 + WATCH_SECONDS)
    assert found(pairs) == (OTHERS, {PAIR})
    pairs.handed_over(min(OTHERS))
    pairs.moved(max(OTHERS))
    pairs.advance(PAIRS, 10.0 + 2 * WATCH_SECONDS)
    assert pairs.suspended == {PAIR, *OTHERS} - {min(OTHERS), max(OTHERS)}


def test_a_hand_off_of_a_request_ends_a_watch_but_no_suspension() -> None:
    pairs = Suspensions()
    pairs.suspend(PAIR, PAIRS, 1.0)
    pairs.handed_over(PAIR)
    pairs.watch(PAIR, 2.0)
    assert pairs.suspended == {PAIR}
    assert PAIR not in pairs.watched
    pairs.moved(PAIR)
    assert not pairs.suspended


def test_pairs_that_are_gone_or_have_restarted_are_forgotten() -> None:
    pairs = Suspensions()
    pairs.suspend(PAIR, PAIRS, 1.0)
    left = {("p0", 2, "d0", 1), ("p1", 1, "d0", 1)}
    pairs.advance(left, 1.1)
    assert found(pairs) == ({("p1", 1, "d0", 1)}, NONE)
