"""Which endpoints receive less than their share: tables."""

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
from pdx_proxy.endpoints.snapshot import Snapshot
from tests.unit.proxy.pools import BODY

P, D = Role.PREFILL, Role.DECODE


def endpoint(port: int, role: Role = D, state: State = State.WARM, since: float = 0.0, **fields: object) -> Endpoint:
    spec = EndpointSpec(Address("h", port), role, **fields)  # type: ignore[arg-type]
    return Endpoint(spec, state, generation=1, warm_since=since)


SHARES = [(0, 0.1), (2.5, 0.325), (5, 0.55), (10, 1.0), (60, 1.0), (-1, 0.1)]


@pytest.mark.parametrize(("age", "share"), SHARES)
def test_the_share_rises_evenly(age: float, share: float) -> None:
    slow = EffectiveLoad(since=100.0, seconds=10.0)
    assert slow.of(0, 100.0 + age) == pytest.approx(1 / share - 1)
    assert slow.of(3, 100.0 + age) == pytest.approx(4 / share - 1)


STARTS = [
    ("together", [0.0, 0.5, 3.0], 3.0, []),
    ("together, later", [0.0, 5.0], 12.0, []),
    ("one is new", [0.0, 0.5, 30.0], 31.0, [2]),
    ("it has been warm for long enough", [0.0, 0.5, 30.0], 40.0, []),
    ("all that are new", [0.0, 30.0, 39.0], 39.5, [1, 2]),
    ("alone", [30.0], 30.0, []),
]


@pytest.mark.parametrize(("starts", "now", "slow"), [c[1:] for c in STARTS], ids=[c[0] for c in STARTS])
@pytest.mark.parametrize("role", [P, D])
def test_slow_endpoints(role: Role, starts: list[float], now: float, slow: list[int]) -> None:
    pool = [endpoint(port, role, since=since) for port, since in enumerate(starts)]
    other = endpoint(9, D if role is P else P, since=-99.0)
    found = effective_loads(Snapshot.of([*pool, other]), 10.0, now)
    assert found == {f"h:{port}": EffectiveLoad(0, starts[port], 10.0) for port in slow}
    assert effective_loads(Snapshot.of([*pool, other]), 0.0, now) == {}


def test_a_new_revision() -> None:
    pool = [endpoint(1, P), endpoint(2), endpoint(3, P, since=50, revision="b"), endpoint(4, since=50, revision="b")]
    assert list(effective_loads(Snapshot.of(pool), 10.0, 51.0)) == ["h:4"], "a revision's P compete among themselves"


@given(st.integers(1, 60), st.integers(0, 9))
def test_slow_start_under_load(rounds: int, age: int) -> None:
    """Legs that stay open are distributed like the shares."""
    old, new = endpoint(1), endpoint(2, since=100.0)
    snapshot = Snapshot.of([old, new])
    load = Load(clock=lambda: 100.0 + age)
    load.effective_loads = effective_loads(snapshot, 10.0, 100.0)
    for cursor in range(rounds):
        choice = pick(snapshot, load.of, BODY, split=False, avoid=(), cursor=cursor)
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
    for cursor in range(9):
        choice = pick(snapshot, load.of, BODY, split=False, avoid=(), cursor=cursor)
        assert choice is not None
        load.acquire(choice.decode)
    assert load.view() == {"h:1": 6, "h:2": 3}
