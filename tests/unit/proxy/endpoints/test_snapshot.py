"""Which endpoints a snapshot offers for selection."""

import pytest

from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.pick import pick
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from tests.unit.proxy.pools import BOTH, P, endpoint

SUSPECTS = [
    ("a warm one comes first", [endpoint(1), endpoint(2, state=State.SUSPECT)], [1]),
    ("the last one stays", [endpoint(1, P), endpoint(2, state=State.SUSPECT)], [2]),
    ("aggregated ones too", [endpoint(1, BOTH, State.SUSPECT), endpoint(2, BOTH, State.COLD)], [1]),
    ("not one that has failed a warm-up", [endpoint(1, state=State.COLD)], []),
    ("not one that leaves", [endpoint(1, state=State.SUSPECT, leaving=True)], []),
    ("not one that is not ready", [endpoint(1, state=State.SUSPECT, ready=False)], []),
    ("not a P", [endpoint(1, P, State.SUSPECT)], []),
]


@pytest.mark.parametrize(("pool", "ports"), [c[1:] for c in SUSPECTS], ids=[c[0] for c in SUSPECTS])
def test_a_suspect_engine_is_selected_while_none_is_warm(pool: list[Endpoint], ports: list[int]) -> None:
    snapshot = Snapshot.of(pool)
    assert [e.address.port for e in snapshot.decode] == ports
    choices = [pick(snapshot, Load().of, split=True, avoid=(), turn=turn) for turn in range(4)]
    for choice in choices:
        assert (choice is None) == (not ports)
        assert choice is None or choice.prefill is None or choice.decode.warm, "suspect: whole requests only"
