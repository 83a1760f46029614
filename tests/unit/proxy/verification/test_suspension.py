"""Pairs within which KV does not move are suspended, and return when a probe moves KV."""

import pytest

from pdx_proxy.endpoints.endpoint import Names
from pdx_proxy.verification.suspension import WATCH_SECONDS, Suspensions

PAIRS = {(f"p{p}", f"d{d}") for p in range(3) for d in range(3)}
ENGINES = {p for p, _ in PAIRS}, {d for _, d in PAIRS}
PAIR = ("p0", "d0")
NONE: set[Names] = set()
OTHERS = {pair for pair in PAIRS if pair != PAIR and (pair[0] == PAIR[0] or pair[1] == PAIR[1])}


def found(pairs: Suspensions) -> tuple[set[Names], set[Names]]:
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
    pairs.begin_probe(PAIR, 11.0)
    pairs.fail(PAIR, 12.9)
    pairs.advance(PAIRS, *ENGINES, 10.0 + WATCH_SECONDS)
    assert found(pairs) == (OTHERS, {PAIR})


def test_a_slow_hand_off_alone_suspends_nothing() -> None:
    pairs = Suspensions()
    pairs.watch(PAIR, 10.0)
    pairs.advance(PAIRS, *ENGINES, 10.0 + WATCH_SECONDS - 0.1)
    assert found(pairs) == ({PAIR}, NONE)


def test_a_watched_pair_that_moves_no_kv_is_suspended_and_its_engines_other_pairs_are_watched() -> None:
    pairs = Suspensions()
    pairs.begin_probe(PAIR, 9.0)
    pairs.watch(PAIR, 10.0)
    pairs.watch(PAIR, 12.0)
    pairs.advance(PAIRS, *ENGINES, 10.0 + WATCH_SECONDS)
    assert found(pairs) == (OTHERS, {PAIR})
    pairs.handed_over(min(OTHERS))
    pairs.moved(max(OTHERS))
    pairs.advance(PAIRS, *ENGINES, 10.0 + 2 * WATCH_SECONDS)
    assert pairs.suspended == {PAIR, *OTHERS} - {min(OTHERS), max(OTHERS)}


@pytest.mark.parametrize("began", [None, 10.0 + 0.6 * WATCH_SECONDS], ids=["waits", "has just begun"])
def test_a_pair_whose_probe_had_no_time_says_nothing_about_the_other_pairs_of_its_engines(began: float | None) -> None:
    """A probe may have to wait for many others. Its pair alone is suspended, until it has ended."""
    pairs = Suspensions()
    pairs.fail(PAIR, 10.0)
    if began is not None:
        pairs.begin_probe(PAIR, began)
    pairs.advance(PAIRS, *ENGINES, 10.0 + WATCH_SECONDS)
    assert found(pairs) == (NONE, {PAIR})
    pairs.moved(PAIR)
    pairs.end_probe(PAIR)
    assert found(pairs) == (NONE, NONE)


def test_a_large_pool_whose_kv_moves_again_returns_as_a_whole() -> None:
    """D has failed with every P, and warms up again; eight probes run at a time, and each takes 0.5 s."""
    engines = {f"p{n}" for n in range(32)}, {f"d{n}" for n in range(32)}
    every = {(f"p{p}", f"d{d}") for p in range(32) for d in range(32)}
    pairs, running, waiting = Suspensions(), dict[Names, float](), list[Names]()
    for p in range(32):
        pairs.fail((f"p{p}", "d0"), 0.0)
    for tick in range(1, 200):
        now = tick / 4
        for pair in [pair for pair, began in running.items() if now - began >= 0.5]:
            pairs.moved(pair)
            pairs.end_probe(pair)
            del running[pair]
        if tick % 4 == 0:
            pairs.advance(every, *engines, now)
            urgent = sorted(pairs.watched | pairs.suspended)
            waiting += [pair for pair in urgent if pair not in running and pair not in waiting]
        while waiting and len(running) < 8:
            pair = waiting.pop(0)
            running[pair] = now
            pairs.begin_probe(pair, now)
        assert all(pair[1] == "d0" for pair in pairs.suspended)
    assert found(pairs) == (NONE, NONE)


def test_a_hand_off_of_a_request_ends_a_watch_but_no_suspension() -> None:
    pairs = Suspensions()
    pairs.suspend(PAIR, PAIRS, 1.0)
    pairs.handed_over(PAIR)
    pairs.watch(PAIR, 2.0)
    assert pairs.suspended == {PAIR}
    assert PAIR not in pairs.watched
    pairs.moved(PAIR)
    assert not pairs.suspended


def test_pairs_of_which_an_engine_is_gone_are_forgotten() -> None:
    pairs = Suspensions()
    pairs.suspend(PAIR, PAIRS, 1.0)
    pairs.fail(("p0", "d1"), 1.0)
    left = {("p1", "d0")}
    pairs.advance(left, {"p1"}, {"d0", "d1", "p0"}, 1.1)  # p0 has become a decode engine
    assert found(pairs) == ({("p1", "d0")}, NONE)


@pytest.mark.parametrize("probed", [NONE, PAIRS - {PAIR}], ids=["nothing serves", "others serve"])
def test_a_pair_that_cannot_be_probed_for_a_while_stays_suspended(probed: set[Names]) -> None:
    """An engine warms up, is paused or is not ready: a probe must then show that KV moves."""
    pairs = Suspensions()
    pairs.suspend(PAIR, {PAIR}, 1.0)
    pairs.advance(probed, *ENGINES, 2.0)
    assert pairs.suspended == {PAIR}
    pairs.advance(PAIRS, *ENGINES, 60.0)
    assert pairs.suspended == {PAIR}
    pairs.moved(PAIR)
    assert not pairs.suspended


def test_a_failed_pair_that_cannot_be_probed_gets_its_whole_watch_afterwards() -> None:
    pairs = Suspensions()
    pairs.fail(PAIR, 1.0)
    pairs.advance(NONE, *ENGINES, 2.0)
    pairs.advance(NONE, *ENGINES, 60.0)
    assert found(pairs) == ({PAIR}, {PAIR})
    pairs.advance({PAIR}, *ENGINES, 60.0 + WATCH_SECONDS - 0.1)
    assert found(pairs) == ({PAIR}, {PAIR})
    pairs.moved(PAIR)
    pairs.advance({PAIR}, *ENGINES, 70.0)
    assert found(pairs) == (NONE, NONE)
