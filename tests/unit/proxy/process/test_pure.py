"""Choice, wire format, counters and load."""

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_api.names import Order, Role
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.pick import pick, stand_in
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State, pairing
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.outlier_detection import OutlierDetector
from pdx_proxy.http.messages import answer_head, request_head
from pdx_proxy.http.upstream.connection_pool import Pool
from pdx_proxy.telemetry.counters import BUCKETS, Counters, Histogram, Outcome, add_reports


def endpoint(port: int, role: Role, revision: str = "a", state: State = State.WARM) -> Endpoint:
    return Endpoint(EndpointSpec(Address("h", port), role, revision, order=Order.PREFILL_FIRST), state)


POOL = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from(Role), st.sampled_from("ab"), st.sampled_from(State)),
    max_size=8,
    unique_by=lambda each: each[0],
)


@given(POOL, st.dictionaries(st.integers(1, 12), st.integers(0, 3)), st.sets(st.integers(1, 12)), st.integers(0, 99))
def test_pick(pool: list[Any], legs: dict[int, int], avoided: set[int], turn: int) -> None:
    snapshot = Snapshot.of(endpoint(*each) for each in pool)
    avoid = {f"h:{port}" for port in avoided}

    def count(each: Endpoint) -> int:
        return legs.get(each.address.port, 0)

    choice = pick(snapshot, count, split=True, avoid=avoid, turn=turn)
    whole = pick(snapshot, count, split=False, avoid=avoid, turn=turn)
    answering = [e for e in snapshot.everything if e.role is not Role.PREFILL]
    warm = [e for e in answering if e.warm]
    decodes = warm or [e for e in answering if e.state is State.SUSPECT]
    if not decodes:
        assert choice is whole is None
        return
    assert choice is not None
    assert whole is not None
    wanted = [d for d in decodes if d.name not in avoid] or decodes
    assert whole.prefill is None
    assert whole.decode in wanted
    assert count(whole.decode) == min(map(count, wanted))
    peers = [e for e in snapshot.everything if warm and e.warm and e.role is Role.PREFILL and e.name not in avoid]

    def queue(decode: Endpoint) -> int:
        return count(decode) + min((count(p) for p in peers if p.revision == decode.revision), default=0)

    revisions = {p.revision for p in peers}
    complete = [d for d in wanted if d.role is Role.AGGREGATED or d.revision in revisions]
    assert choice.decode in (complete or wanted)
    weigh = queue if len(revisions) > 1 else count
    assert weigh(choice.decode) == min(map(weigh, complete or wanted))
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
    choices = [pick(snapshot, lambda _: 0, split=True, avoid=(), turn=turn) for turn in range(12)]
    revisions = [choice.decode.revision for choice in choices if choice]
    assert {revision: revisions.count(revision) for revision in set(revisions)} == shares
    for choice in choices:
        assert choice is not None
        assert choice.prefill is None or choice.prefill.revision == choice.decode.revision


def test_a_revision_whose_prefill_is_behind_gets_less() -> None:
    pool = [endpoint(1, P, "a"), endpoint(2, D, "a"), endpoint(3, P, "b"), endpoint(4, D, "b")]
    busy = {pool[0].name: 5, pool[1].name: 0, pool[3].name: 3}
    choice = pick(Snapshot.of(pool), lambda e: busy.get(e.name, 0), split=True, avoid=(), turn=0)
    assert choice is not None
    assert choice.decode.revision == "b"


def test_another_d_stands_in_for_one_that_leaves() -> None:
    mine, other, alien = endpoint(1, D, "a"), endpoint(2, D, "a"), endpoint(3, D, "b")
    leaving = replace(mine, spec=replace(mine.spec, leaving=True))
    again = replace(mine, generation=7)

    def now(*endpoints: Endpoint) -> Endpoint:
        return stand_in(Snapshot.of(endpoints), lambda _: 0, mine, turn=0)

    assert now(again, other, alien) is again
    assert now(leaving, other, alien) is other
    assert now(leaving, alien) is mine, "no other D may read the KV"


STATES = [
    ({}, State.COLD, State.COLD, True),
    ({}, State.WARM, State.WARM, False),
    ({"ready": False}, State.WARM, State.NOT_READY, False),
    ({"ready": False}, State.COLD, State.NOT_READY, False),
    ({"leaving": True}, State.WARM, State.LEAVING, False),
    ({"leaving": True, "ready": False}, State.COLD, State.LEAVING, False),
]


@pytest.mark.parametrize(("fields", "warm_up_state", "state", "wants"), STATES)
def test_state_follows_pod_and_warm_up(fields: dict[str, Any], warm_up_state: State, state: State, wants: bool) -> None:
    spec = EndpointSpec(Address("h", 1), D, **fields)
    found = Endpoint(spec, warm_up_state)
    assert (found.state, found.warm, found.needs_warm_up) == (state, state is State.WARM, wants)


def test_equals_are_taken_in_turn() -> None:
    snapshot = Snapshot.of([endpoint(port, Role.DECODE) for port in range(3)])
    turns = [pick(snapshot, lambda _: 0, split=False, avoid=(), turn=turn) for turn in range(6)]
    assert [each.decode.address.port for each in turns if each] == [0, 1, 2, 0, 1, 2]


async def test_a_leg_is_counted_until_it_ends_once() -> None:
    pool, load, one = Pool(idle_seconds=1, connect_seconds=1), Load(), endpoint(1, Role.DECODE)
    outliers = OutlierDetector(5, lambda _: None)
    first, second = Leg(pool, load, one, outliers), Leg(pool, load, one, outliers)
    assert load.of(one) == 2
    first.end()
    first.end()
    assert load.of(one) == 1
    assert load.view() == {"h:1": 1}
    third = second.detach()
    second.end()
    assert load.of(one) == 1
    third.end()
    assert load.view() == {}


@given(st.lists(st.integers(0, 3)), st.randoms())
def test_load_is_what_is_held(ports: list[int], random: Random) -> None:
    load = Load()
    for port in ports:
        load.acquire(endpoint(port, Role.DECODE))
    while ports:
        assert load.view() == {f"h:{port}": ports.count(port) for port in ports}
        load.release(endpoint(ports.pop(random.randrange(len(ports))), Role.DECODE))
    assert load.view() == {}


def test_a_pair_is_one_of_starts() -> None:
    p, d = endpoint(1, Role.PREFILL), endpoint(2, Role.DECODE)
    assert pairing(p, d) != pairing(replace(p, generation=1), d) != pairing(p, replace(d, generation=1))


@given(st.lists(st.floats(0, 500), max_size=30))
def test_a_histogram_counts_each_once(seconds: list[float]) -> None:
    histogram = Histogram()
    for each in seconds:
        histogram.observe(each)
    assert sum(histogram.counts) == len(seconds)
    for index, bound in enumerate(BUCKETS):
        assert sum(histogram.counts[: index + 1]) == sum(each <= bound for each in seconds)


@given(st.lists(st.lists(st.sampled_from(Outcome), max_size=5), max_size=4))
def test_reports_add_up(workers: list[list[Outcome]]) -> None:
    reports = []
    for outcomes in workers:
        counters = Counters(requests_in_flight=1)
        for outcome in outcomes:
            counters.outcomes[outcome] += 1
            counters.retried(outcome)
        reports.append(counters.report({"d": 2}))
    total = add_reports(reports)
    every = [outcome for outcomes in workers for outcome in outcomes]
    assert total["outcomes"] == {outcome.value: every.count(outcome) for outcome in Outcome}
    assert sum(total["retries"].values()) == len(every)
    assert total["inFlight"]["requests"] == len(workers)
    assert total["legs"] == ({"d": 2 * len(workers)} if workers else {})


def test_a_request_as_bytes() -> None:
    assert request_head("POST", "/p", "h:1", [("A", "b")], 2) == (
        b"POST /p HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
    )
    assert request_head("GET", "/p", "h:1", [], 0) == b"GET /p HTTP/1.1\r\nHost: h:1\r\n\r\n"


DROPPED = [b"connection", b"content-length", b"date", b"keep-alive", b"server", b"transfer-encoding", b"x-request-id"]


def test_an_answers_head() -> None:
    headers = [*((name, b"theirs") for name in DROPPED), (b"x-mine", b"1")]
    assert answer_head(404, headers, {"x": "y"}) == b"HTTP/1.1 404 Not Found\r\nx-mine: 1\r\nx: y\r\n\r\n"
    assert answer_head(599, [], {}) == b"HTTP/1.1 599 \r\n\r\n"


@pytest.mark.parametrize(("host", "text"), [("127.0.0.1", "127.0.0.1:1"), ("::1", "[::1]:1"), ("name", "name:1")])
def test_an_address_as_text(host: str, text: str) -> None:
    assert str(Address(host, 1)) == text


async def test_a_connection_that_is_over_at_once_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(idle_seconds=1, connect_seconds=1)

    async def create_connection(factory: Any, *_: Any) -> None:
        factory().connection_lost(None)

    monkeypatch.setattr(pool, "_loop", SimpleNamespace(create_connection=create_connection, time=lambda: 0.0))
    connection = await pool.connect(endpoint(1, Role.DECODE))
    assert connection.lost is not None
    assert not pool._all
