"""Pairs that have exchanged KV, and what it costs to forget those of one engine."""

from itertools import product
from typing import Any

from pdx_proxy.handoff.handshakes import Handshakes

PREFILLS = [(f"p{n}", 1) for n in range(100)]
DECODES = [(f"d{n}", 1) for n in range(100)]


class Pair(tuple[Any, ...]):
    """A pair that counts how often any of them is read."""

    reads = 0

    def __getitem__(self, item: Any) -> Any:
        Pair.reads += 1
        return super().__getitem__(item)

    def __hash__(self) -> int:
        Pair.reads += 1
        return super().__hash__()


def all_pairs() -> Handshakes:
    handshakes = Handshakes()
    handshakes.apply({*PREFILLS, *DECODES})
    for prefill, decode in product(PREFILLS, DECODES):
        handshakes.add(Pair((*prefill, *decode)))
    return handshakes


def test_one_engine_that_restarts_costs_its_own_pairs() -> None:
    handshakes = all_pairs()
    assert len(handshakes.pairs) == 10_000
    Pair.reads = 0
    current = {*PREFILLS, *DECODES} - {("d7", 1)} | {("d7", 2)}
    handshakes.apply(current)
    assert Pair.reads <= 10 * 100
    assert handshakes.pairs == {(*p, *d) for p, d in product(PREFILLS, DECODES) if d[0] != "d7"}
    Pair.reads = 0
    handshakes.apply(current)
    assert Pair.reads == 0


def test_pairs_of_generations_that_are_over_are_not_kept() -> None:
    handshakes = Handshakes()
    handshakes.apply({("p", 1), ("d", 1)})
    handshakes.add(("p", 1, "d", 1))
    handshakes.add(("p", 1, "other", 1))
    assert handshakes.pairs == {("p", 1, "d", 1)}
    handshakes.apply({("p", 2), ("d", 1)})
    handshakes.add(("p", 1, "d", 1))
    assert handshakes.pairs == set()
    handshakes.add(("p", 2, "d", 1))
    handshakes.apply(set())
    assert (handshakes.pairs, handshakes._of) == (set(), {})
