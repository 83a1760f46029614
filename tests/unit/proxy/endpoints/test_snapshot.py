"""States of endpoints, and which endpoints a snapshot offers."""

from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.pick import pick
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State, pairing
from pdx_proxy.endpoints.snapshot import Snapshot
from tests.unit.proxy.pools import BODY

P, D, BOTH = Role.PREFILL, Role.DECODE, Role.AGGREGATED


def endpoint(port: int, role: Role = D, state: State = State.WARM, **fields: object) -> Endpoint:
    spec = EndpointSpec(Address("h", port), role, **fields)  # type: ignore[arg-type]
    return Endpoint(spec, state, generation=1)


STATES = [
    ({}, State.COLD, State.COLD, True),
    ({}, State.WARM, State.WARM, False),
    ({"ready": False}, State.WARM, State.NOT_READY, False),
    ({"ready": False}, State.COLD, State.NOT_READY, False),
    ({"leaving": True}, State.WARM, State.LEAVING, False),
    ({"leaving": True, "ready": False}, State.COLD, State.LEAVING, False),
]


@pytest.mark.parametrize(("fields", "warm_up_state", "state", "needs_warm_up"), STATES)
def test_state(fields: dict[str, Any], warm_up_state: State, state: State, needs_warm_up: bool) -> None:
    spec = EndpointSpec(Address("h", 1), D, **fields)
    found = Endpoint(spec, warm_up_state)
    assert (found.state, found.warm, found.needs_warm_up) == (state, state is State.WARM, needs_warm_up)


SUSPECTS = [
    ("a warm one comes first", [endpoint(1), endpoint(2, state=State.SUSPECT)], [1]),
    ("the last one is still selected", [endpoint(1, P), endpoint(2, state=State.SUSPECT)], [2]),
    ("aggregated ones too", [endpoint(1, BOTH, State.SUSPECT), endpoint(2, BOTH, State.COLD)], [1]),
    ("not one that has failed a warm-up", [endpoint(1, state=State.COLD)], []),
    ("not one that leaves", [endpoint(1, state=State.SUSPECT, leaving=True)], []),
    ("not one that is not ready", [endpoint(1, state=State.SUSPECT, ready=False)], []),
    ("not a P", [endpoint(1, P, State.SUSPECT)], []),
]


@pytest.mark.parametrize(("pool", "ports"), [c[1:] for c in SUSPECTS], ids=[c[0] for c in SUSPECTS])
def test_suspect_engines(pool: list[Endpoint], ports: list[int]) -> None:
    snapshot = Snapshot.of(pool)
    assert [e.address.port for e in snapshot.decode] == ports
    choices = [pick(snapshot, Load().of, BODY, split=True, avoid=(), cursor=cursor) for cursor in range(4)]
    for choice in choices:
        assert (choice is None) == (not ports)
        assert choice is None or choice.prefill is None or choice.decode.warm, "suspect: whole requests only"


def test_a_pair_belongs_to_generations() -> None:
    p, d = endpoint(1, Role.PREFILL), endpoint(2, Role.DECODE)
    assert pairing(p, d) != pairing(replace(p, generation=2), d) != pairing(p, replace(d, generation=2))


def test_fewer_engines_pair_no_better_than_all() -> None:
    p, d, other = endpoint(1, Role.PREFILL), endpoint(2), endpoint(3)
    never = frozenset({pairing(p, d)})
    chosen = Snapshot.of([p, d, other], suspended=never).only({p.name, d.name})
    assert (chosen.everything, chosen.complete, chosen.suspended) == ((p, d), (), never)
