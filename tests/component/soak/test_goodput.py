"""The simulation of `make goodput` beside `pdx sim` in real time: 20 seconds always, ten minutes in `make soak`."""

import pytest

from benchmarks.goodput.realtime import compare, lines, short_trace

SECONDS = {False: 20.0, True: 600.0}
TOLERANCE = {False: 0.15, True: 0.1}
"""By which part the TTFTs may differ, p50 and p99. Real time is later: Python, loopback and other programs take time."""


@pytest.mark.alone
@pytest.mark.parametrize(
    ("seed", "rate", "soak"),
    [
        pytest.param(1, 1.8, False, marks=pytest.mark.timeout(120), id="short"),
        pytest.param(2, 1.8, True, marks=[pytest.mark.soak, pytest.mark.timeout(900)], id="long"),
        pytest.param(3, 2.2, True, marks=[pytest.mark.soak, pytest.mark.timeout(900)], id="long-near-capacity"),
    ],
)
async def test_the_simulation_agrees_with_pdx_sim(seed: int, rate: float, soak: bool) -> None:
    agreement = await compare(short_trace(seed, SECONDS[soak], rate))
    text = "\n".join(lines(agreement))
    print(text)
    assert len(agreement.measured) > 15
    assert max(agreement.differs(0.5), agreement.differs(0.99)) <= TOLERANCE[soak], text
