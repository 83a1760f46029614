"""The choice over a snapshot, and the load that it compares."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_api.names import Order, Role
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.pick import pick, replacement_decode
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State, pairing
from pdx_proxy.endpoints.snapshot import Snapshot
from tests.unit.proxy.pools import BODY


def endpoint(port: int, role: Role, revision: str = "a", state: State = State.WARM) -> Endpoint:
    return Endpoint(EndpointSpec(Address("h", port), role, revision, order=Order.PREFILL_FIRST), state)


POOL = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from(Role), st.sampled_from("ab"), st.sampled_from(State)),
    max_size=8,
    unique_by=lambda each: each[0],
)


@given(POOL, st.dictionaries(st.integers(1, 12), st.integers(0, 3)), st.sets(st.integers(1, 12)), st.integers(0, 99))
def test_pick(pool: list[Any], legs: dict[int, int], avoided: set[int], cursor: int) -> None:
    snapshot = Snapshot.of(endpoint(*each) for each in pool)
    avoid = {f"h:{port}" for port in avoided}

    def count(each: Endpoint) -> int:
        return legs.get(each.address.port, 0)

    choice = pick(snapshot, count, BODY, split=True, avoid=avoid, cursor=cursor)
    whole = pick(snapshot, count, BODY, split=False, avoid=avoid, cursor=cursor)
    answering = [e for e in snapshot.everything if e.role is not Role.PREFILL]
    warm = [e for e in answering if e.warm]
    decodes = warm or [e for e in answering if e.state is State.SUSPECT]
    if not decodes:
        assert choice is whole is None
        return
    assert choice is not None
    assert whole is not None
    expected = [d for d in decodes if d.name not in avoid] or decodes
    assert whole.prefill is None
    assert whole.decode in expected
    assert count(whole.decode) == min(map(count, expected))
    peers = [e for e in snapshot.everything if warm and e.warm and e.role is Role.PREFILL and e.name not in avoid]

    def queue(decode: Endpoint) -> int:
        return count(decode) + min((count(p) for p in peers if p.revision == decode.revision), default=0)

    revisions = {p.revision for p in peers}
    complete = [d for d in expected if d.role is Role.AGGREGATED or d.revision in revisions]
    assert choice.decode in (complete or expected)
    weigh = queue if len(revisions) > 1 else count
    assert weigh(choice.decode) == min(map(weigh, complete or expected))
    peers = [p for p in peers if p.revision == choice.decode.revision and choice.decode.role is Role.DECODE]
    if not peers:
        assert choice.prefill is None
    else:
        assert choice.prefill in peers
        assert count(choice.prefill) == min(map(count, peers))


P, D, BOTH = Role.PREFILL, Role.DECODE, Role.AGGREGATED
ROLLOUTS: list[tuple[str, list[tuple[Role, str]], dict[str, int]]] = [
    ("pairs first", [(P, "a"), (D, "a"), (D, "b"), (D, "b")], {"a": 12}),
    ("whole when no revision has both", [(P, "a"), (D, "b"), (D, "c")], {"b": 6, "c": 6}),
    ("by the number of D", [(P, "a"), (D, "a"), (D, "a"), (D, "a"), (P, "b"), (D, "b")], {"a": 9, "b": 3}),
    ("aggregated is complete", [(P, "a"), (D, "a"), (BOTH, "b")], {"a": 6, "b": 6}),
]


@pytest.mark.parametrize(("pool", "shares"), [case[1:] for case in ROLLOUTS], ids=[case[0] for case in ROLLOUTS])
def test_revisions_side_by_side(pool: list[tuple[Role, str]], shares: dict[str, int]) -> None:
    snapshot = Snapshot.of(endpoint(port, *each) for port, each in enumerate(pool))
    choices = [pick(snapshot, lambda _: 0, BODY, split=True, avoid=(), cursor=cursor) for cursor in range(12)]
    revisions = [choice.decode.revision for choice in choices if choice]
    assert {revision: revisions.count(revision) for revision in set(revisions)} == shares
    for choice in choices:
        assert choice is not None
        assert choice.prefill is None or choice.prefill.revision == choice.decode.revision


def test_a_revision_whose_prefill_is_behind_gets_less() -> None:
    pool = [endpoint(1, P, "a"), endpoint(2, D, "a"), endpoint(3, P, "b"), endpoint(4, D, "b")]
    busy = {pool[0].name: 5, pool[1].name: 0, pool[3].name: 3}
    choice = pick(Snapshot.of(pool), lambda e: busy.get(e.name, 0), BODY, split=True, avoid=(), cursor=0)
    assert choice is not None
    assert choice.decode.revision == "b"


def test_replacement_of_a_d_that_leaves() -> None:
    mine, other, alien = endpoint(1, D, "a"), endpoint(2, D, "a"), endpoint(3, D, "b")
    leaving = replace(mine, spec=replace(mine.spec, leaving=True))
    again = replace(mine, generation=7)

    def now(*endpoints: Endpoint) -> Endpoint:
        return replacement_decode(Snapshot.of(endpoints), lambda _: 0, mine, cursor=0)

    assert now(again, other, alien) is again
    assert now(leaving, other, alien) is other
    assert now(leaving, alien) is mine, "no other D may read the KV"


def test_equals_alternate() -> None:
    snapshot = Snapshot.of([endpoint(port, Role.DECODE) for port in range(3)])
    cursors = [pick(snapshot, lambda _: 0, BODY, split=False, avoid=(), cursor=cursor) for cursor in range(6)]
    assert [each.decode.address.port for each in cursors if each] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("number", [1, 2, 3, 8])
def test_equals_form_every_pair(number: int) -> None:
    """As many P's as D's: a pair that never exchanged KV under low load would do so for the first time under load."""
    pool = [endpoint(port, role) for role in (P, D) for port in range(number)]
    pool = [replace(each, spec=replace(each.spec, pod=f"{each.role}-{n}")) for n, each in enumerate(pool)]
    choices = [pick(Snapshot.of(pool), lambda _: 0, BODY, split=True, avoid=(), cursor=n) for n in range(number**2)]
    pairs = {(choice.prefill.name, choice.decode.name) for choice in choices if choice and choice.prefill}
    assert len(pairs) == number**2


@given(st.lists(st.integers(0, 3)), st.randoms())
def test_load_counts_open_legs(ports: list[int], random: Random) -> None:
    load = Load()
    for port in ports:
        load.acquire(endpoint(port, Role.DECODE))
    while ports:
        assert load.view() == {f"h:{port}": ports.count(port) for port in ports}
        load.release(endpoint(ports.pop(random.randrange(len(ports))), Role.DECODE))
    assert load.view() == {}


def test_no_request_is_split_over_a_suspended_pair() -> None:
    p1, p2, d1, d2 = (endpoint(n, role) for n, role in enumerate([Role.PREFILL] * 2 + [Role.DECODE] * 2, 1))
    pool = [p1, p2, d1, d2]

    def picked(*suspended: Any, avoid: tuple[str, ...] = ()) -> set[tuple[str, str, bool]]:
        snapshot = Snapshot.of(pool, suspended=frozenset(pairing(*pair) for pair in suspended))
        choices = [pick(snapshot, lambda _: 0, BODY, split=True, avoid=avoid, cursor=n) for n in range(16)]
        return {(c.prefill.name if c.prefill else "", c.decode.name, c.suspended) for c in choices if c is not None}

    every = {(p.name, d.name, False) for p in (p1, p2) for d in (d1, d2)}
    assert picked() == every
    assert picked((p1, d1)) == every - {(p1.name, d1.name, False)}
    assert picked((p1, d1), (p2, d1)) == {(p1.name, d2.name, False), (p2.name, d2.name, False)}
    assert picked((p1, d1), (p2, d1), avoid=(d2.name,)) == {("", d1.name, True)}
    assert picked(*((p, d) for p in (p1, p2) for d in (d1, d2))) == {("", e.name, True) for e in pool}
    assert picked((p1, d1), (p1, d2), (p2, d1), avoid=(d2.name,)) == {("", d1.name, True), ("", p1.name, True)}


def test_a_decode_whose_prefills_are_cold_and_suspended_is_alone_for_that_reason() -> None:
    p, d = endpoint(1, Role.PREFILL, state=State.COLD), endpoint(2, Role.DECODE)
    choice = pick(
        Snapshot.of([p, d], suspended=frozenset({pairing(p, d)})), lambda _: 0, BODY, split=True, avoid=(), cursor=0
    )
    assert choice is not None
    assert choice.suspended
