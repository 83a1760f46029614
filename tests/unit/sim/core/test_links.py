"""Links that transfers share."""

import pytest

from pdx_sim.core.links import Link


def test_a_transfer_alone_gets_the_whole_link() -> None:
    link = Link(2.0)
    assert link.reserve(1e9, now=5.0) == pytest.approx(5.5)
    assert link.reserve(1e9, now=9.0) == pytest.approx(9.5), "an idle link saves nothing up"


def test_transfers_under_way_at_the_same_time_share_it() -> None:
    link = Link(1.0)
    ends = {"a": 0.0, "b": 0.0}
    for _ in range(10):
        for name in ends:
            ends[name] = link.reserve(0.1e9, now=ends[name])
    assert ends["b"] == pytest.approx(2.0), "twice as long as alone"
    assert ends["a"] == pytest.approx(1.9)
    assert link.reserve(1e9, now=ends["b"]) == pytest.approx(3.0)
