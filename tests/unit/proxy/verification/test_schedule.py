"""Which pairs can be probed, and when each is due."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_api.verification import Cause, Verdict
from pdx_proxy.endpoints.endpoint import Endpoint, Names, State
from pdx_proxy.verification.record import Pair, Record, Result, Unequal
from pdx_proxy.verification.schedule import candidates, due, unequal
from pdx_proxy.verification.verdict import finding_of, next_record
from tests.unit.proxy.verification.pools import D, P, engine, names, pairs_of, pool

PERIOD = 40.0


def run(
    pairs: list[Pair], until: float, records: dict[Names, Record], bad: frozenset[Names] = frozenset()
) -> Counter[Names]:
    """Probe what is due once a second; return how often each pair was probed."""
    probes: Counter[Names] = Counter()
    now = max((record.at for record in records.values()), default=0.0)
    while now < until:
        for pair in due(pairs, records, now, PERIOD):
            key = (pair[0].name, pair[1].name)
            probes[key] += 1
            result = Result.RECOMPUTED if key in bad else Result.MOVED
            records[key] = next_record(pair, result, records.get(key), now, "seen", Cause.PORTS)
        now += 1.0
    return probes


def test_candidates_are_pairs_of_one_revision() -> None:
    aggregated = replace(engine(D, 9), spec=replace(engine(D, 9).spec, role=Role.AGGREGATED))
    others = [
        *pool(1, 1, "b"),
        engine(P, 5, "c"),
        engine(D, 5, warm_up_state=State.COLD),
        engine(P, 6, warm_up_state=State.COLD),
        engine(P, 7, warm_up_state=State.COLD, reason="its hand-off failed"),
        aggregated,
    ]
    first, second = candidates([*pool(1, 1), *others])
    assert names(first) == [("prefill-a-0", "decode-a-0"), ("prefill-a-7", "decode-a-0")]
    assert names(second) == [("prefill-b-0", "decode-b-0")]


def test_pairs_whose_versions_differ_count_if_their_revision_has_no_other() -> None:
    def of(role: Role, number: int, version: str, **more: Any) -> Endpoint:
        return replace(engine(role, number), version=version, **more)

    waits = of(P, 0, "0.32.0", warm_up_state=State.WARMING, reason="waits")
    others = of(D, 0, "0.32.1"), of(D, 1, "0.33.0"), of(D, 2, "")
    assert names([*unequal([waits, *others[:2]]).first]) == [
        ("prefill-a-0", "decode-a-0"),
        ("prefill-a-0", "decode-a-1"),
    ]
    assert unequal([waits, *others[:2]]).count == 2
    assert candidates([waits, *others[:2]]) == []
    assert unequal([waits, others[0], of(D, 3, "0.32.0")]) == Unequal()
    assert unequal([waits, of(D, 0, "0.32.1", warm_up_state=State.COLD)]) == Unequal()
    assert unequal([waits, *others]) == Unequal(), "an unknown version pairs with all"


def test_an_engine_that_still_starts_may_pair() -> None:
    one, other = engine(P, 0, version="0.32.0"), engine(D, 0, version="0.32.1")
    starts = engine(P, 1, warm_up_state=State.COLD)
    waits = replace(starts, spec=replace(starts.spec, ready=False))
    assert unequal([one, other]).count == 1
    assert unequal([one, other, waits]) == Unequal()
    assert unequal([one, other, replace(waits, version="0.32.0")]).count == 1


def test_many_unequal_pairs_are_counted_and_a_few_are_listed() -> None:
    old = [engine(P, number, version="0.32.0") for number in range(64)]
    new = [engine(D, number, version="0.33.0") for number in range(64)]
    found = unequal([*old, *new])
    assert (found.count, len(found.first)) == (64 * 64, 3)
    finding = finding_of([], {}, None, unequal=found)
    assert (finding.broken_pairs, finding.possible, len(finding.broken)) == (64 * 64, 64 * 64, 3)


@pytest.mark.parametrize("enforced", [True, False])
def test_engines_that_compare_no_hash_pair_if_their_minor_versions_are_equal(enforced: bool) -> None:
    def of(role: Role, number: int, version: str) -> Endpoint:
        found = engine(role, number, version=version)
        return replace(found, spec=replace(found.spec, any_patch=not enforced))

    cpu, gpu, newer = of(P, 0, "0.32.0+cpu"), of(D, 0, "0.32.0"), of(D, 1, "0.33.0")
    found = [names(pairs) for pairs in candidates([cpu, gpu, newer])]
    assert found == ([] if enforced else [[("prefill-a-0", "decode-a-0")]])


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 2), (4, 4), (1, 16)])
def test_a_small_pool_probes_every_pair_at_once(prefill: int, decode: int) -> None:
    pairs = pairs_of(prefill, decode)
    assert sorted(names(due(pairs, {}, 0.0, PERIOD))) == sorted(names(pairs))


@pytest.mark.parametrize(("prefill", "decode"), [(8, 8), (3, 17), (17, 2), (64, 64)])
def test_a_large_pool_covers_every_engine(prefill: int, decode: int) -> None:
    chosen = names(due(pairs_of(prefill, decode), {}, 0.0, PERIOD))
    assert len(chosen) == max(prefill, decode)
    assert Counter(name for pair in chosen for name in pair) >= Counter(e.name for e in pool(prefill, decode))


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 2), (3, 5), (8, 8)])
def test_every_pair_is_probed_and_no_engine_too_often(prefill: int, decode: int) -> None:
    pairs = pairs_of(prefill, decode)
    records: dict[Names, Record] = {}
    run(pairs, 1.0, records)
    rounds = 2 * max(prefill, decode) + 2
    probes = run(pairs, 1.0 + rounds * (PERIOD + 1), records)
    assert set(probes) == {(p.name, d.name) for p, d in pairs}
    by_engine = Counter[str]()
    for pair, count in probes.items():
        by_engine.update(dict.fromkeys(pair, count))
    larger = P if prefill >= decode else D
    assert max(count for name, count in by_engine.items() if name.startswith(larger)) <= rounds + 1


def test_each_engine_is_probed_once_a_period() -> None:
    pairs = pairs_of(8, 8)
    records: dict[Names, Record] = {}
    for end in range(200):
        run(pairs, float(end), records)
        if end > 1:
            for e in {e.name for pair in pairs for e in pair}:
                assert end - max(r.at for key, r in records.items() if e in key) <= PERIOD + 1


def test_a_broken_pair_is_probed_sooner() -> None:
    pairs = pairs_of(1, 1)
    key = (pairs[0][0].name, pairs[0][1].name)
    records: dict[Names, Record] = {}
    probes = run(pairs, 200.0, records, frozenset({key}))
    assert probes[key] == 7, "at 0, 10, 30, 70, 110, 150, 190"
    assert records[key].verdict is Verdict.BROKEN
    run(pairs, 232.0, records)
    assert records[key].verdict is Verdict.VERIFIED


def test_an_engine_warmed_up_again_is_due_at_once() -> None:
    pairs = pairs_of(1, 1)
    records: dict[Names, Record] = {}
    run(pairs, 1.0, records)
    assert due(pairs, records, 2.0, PERIOD) == []
    again = [(pairs[0][0], replace(pairs[0][1], generation=2))]
    assert due(again, records, 2.0, PERIOD) == again
