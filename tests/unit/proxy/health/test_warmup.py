"""When an engine is left out, and which get less than their share: tables."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_api.names import Role
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.pick import pick
from pdx_proxy.balancing.slow_start import EffectiveLoad, effective_loads
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import Cause, EndpointEvent, Suspect
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.outlier_detection import OutlierDetector

P, D, BOTH = Role.PREFILL, Role.DECODE, Role.AGGREGATED


def endpoint(port: int, role: Role = D, state: State = State.WARM, since: float = 0.0, **fields: object) -> Endpoint:
    spec = EndpointSpec(Address("h", port), role, **fields)  # type: ignore[arg-type]
    return Endpoint(spec, state, generation=1, warm_since=since)


STREAKS = [
    ("five in a row", 5, "fffff", [5]),
    ("four are not enough", 5, "ffff", []),
    ("a success ends a streak", 5, "ffff.fff", []),
    ("and another begins", 3, "ff.ffff", [6]),
    ("each is told once", 2, "fffff", [2, 4]),
    ("the first", 1, ".f", [2]),
    ("never", 0, "f" * 20, []),
    ("not its own", 3, "f-f-f-f-", []),
    ("two of three were its own", 3, "fff-ff", [3]),
    ("nothing to forgive", 2, "-f-ff", [5]),
]


@pytest.mark.parametrize(("limit", "answers", "told"), [c[1:] for c in STREAKS], ids=[c[0] for c in STREAKS])
def test_failures_in_a_row(limit: int, answers: str, told: list[int]) -> None:
    news: list[EndpointEvent] = []
    outliers, one = OutlierDetector(limit, news.append), endpoint(1)
    found = []
    for number, answer in enumerate(answers, 1):
        before = len(news)
        if answer == "f":
            outliers.failed(one, "status 500")
        elif answer == "-":
            outliers.forgive(one)
        else:
            outliers.succeeded(one)
        found += [number] * (len(news) - before)
    assert found == told
    reason = f"{limit} failures in a row, the last: status 500"
    assert set(news) <= {Suspect("h:1", 1, reason, Cause.CONSECUTIVE_ERRORS)}


def test_a_streak_belongs_to_one_start_of_one_engine() -> None:
    news: list[EndpointEvent] = []
    outliers, one, other = OutlierDetector(2, news.append), endpoint(1), endpoint(2)
    for each in (one, other, replace(one, generation=2)):
        outliers.failed(each, "")
    assert not news
    outliers.keep({("h:1", 2)})
    assert list(outliers.counts) == [("h:1", 2)]


SUSPECTS = [
    ("a warm one comes first", [endpoint(1), endpoint(2, state=State.SUSPECT)], [1]),
    ("the last one is asked on", [endpoint(1, P), endpoint(2, state=State.SUSPECT)], [2]),
    ("aggregated ones too", [endpoint(1, BOTH, State.SUSPECT), endpoint(2, BOTH, State.COLD)], [1]),
    ("not one that has failed a warm-up", [endpoint(1, state=State.COLD)], []),
    ("not one that leaves", [endpoint(1, state=State.SUSPECT, leaving=True)], []),
    ("not one that is not ready", [endpoint(1, state=State.SUSPECT, ready=False)], []),
    ("not a P", [endpoint(1, P, State.SUSPECT)], []),
]


@pytest.mark.parametrize(("pool", "ports"), [c[1:] for c in SUSPECTS], ids=[c[0] for c in SUSPECTS])
def test_a_suspect_engine_answers_while_no_other_can(pool: list[Endpoint], ports: list[int]) -> None:
    snapshot = Snapshot.of(pool)
    assert [e.address.port for e in snapshot.decode] == ports
    choices = [pick(snapshot, Load().of, split=True, avoid=(), turn=turn) for turn in range(4)]
    for choice in choices:
        assert (choice is None) == (not ports)
        assert choice is None or choice.prefill is None or choice.decode.warm, "suspect: whole requests only"


SHARES = [(0, 0.1), (2.5, 0.325), (5, 0.55), (10, 1.0), (60, 1.0), (-1, 0.1)]


@pytest.mark.parametrize(("age", "share"), SHARES)
def test_the_share_rises_evenly(age: float, share: float) -> None:
    slow = EffectiveLoad(since=100.0, seconds=10.0)
    assert slow.load(0, 100.0 + age) == pytest.approx(1 / share - 1)
    assert slow.load(3, 100.0 + age) == pytest.approx(4 / share - 1)


STARTS = [
    ("together", [0.0, 0.5, 3.0], 3.0, []),
    ("together, and looked at later", [0.0, 5.0], 12.0, []),
    ("one is new", [0.0, 0.5, 30.0], 31.0, [2]),
    ("it has been warm for long enough", [0.0, 0.5, 30.0], 40.0, []),
    ("all that are new", [0.0, 30.0, 39.0], 39.5, [1, 2]),
    ("alone", [30.0], 30.0, []),
]


@pytest.mark.parametrize(("starts", "now", "slow"), [c[1:] for c in STARTS], ids=[c[0] for c in STARTS])
@pytest.mark.parametrize("role", [P, D])
def test_who_starts_slowly(role: Role, starts: list[float], now: float, slow: list[int]) -> None:
    pool = [endpoint(port, role, since=since) for port, since in enumerate(starts)]
    other = endpoint(9, D if role is P else P, since=-99.0)
    found = effective_loads(Snapshot.of([*pool, other]), 10.0, now)
    assert found == {f"h:{port}": EffectiveLoad(0, starts[port], 10.0) for port in slow}
    assert effective_loads(Snapshot.of([*pool, other]), 0.0, now) == {}


def test_a_new_revision_starts_among_the_old_decodes() -> None:
    pool = [endpoint(1, P), endpoint(2), endpoint(3, P, since=50, revision="b"), endpoint(4, since=50, revision="b")]
    assert list(effective_loads(Snapshot.of(pool), 10.0, 51.0)) == ["h:4"], "a revision's P compete among themselves"


@given(st.integers(1, 60), st.integers(0, 9))
def test_under_load_a_slow_engine_has_its_share_of_legs(rounds: int, age: int) -> None:
    """Legs that stay open are spread as the shares are."""
    old, new = endpoint(1), endpoint(2, since=100.0)
    snapshot = Snapshot.of([old, new])
    load = Load(clock=lambda: 100.0 + age)
    load.effective_loads = effective_loads(snapshot, 10.0, 100.0)
    for turn in range(rounds):
        choice = pick(snapshot, load.of, split=False, avoid=(), turn=turn)
        assert choice is not None
        load.acquire(choice.decode)
    share = 0.1 + 0.9 * age / 10
    fair = rounds * share / (1 + share)
    assert abs(load.view().get("h:2", 0) - fair) <= 1


def test_a_lost_handoff_weighs_as_a_leg() -> None:
    well, hurt = endpoint(1), replace(endpoint(2), lost=3)
    snapshot = Snapshot.of([well, hurt])
    load = Load()
    load.effective_loads = effective_loads(snapshot, 10.0, 100.0)
    for turn in range(9):
        choice = pick(snapshot, load.of, split=False, avoid=(), turn=turn)
        assert choice is not None
        load.acquire(choice.decode)
    assert load.view() == {"h:1": 6, "h:2": 3}
