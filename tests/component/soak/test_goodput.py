"""The simulation of `make goodput` and `pdx sim` in real time: 20 seconds always, ten minutes in `make soak`."""

import pytest

from benchmarks.goodput.realtime import SHARES, compare, short_trace
from benchmarks.goodput.report import HERE
from benchmarks.soak.results import print_line, record

SECONDS = {False: 20.0, True: 600.0}
TOLERANCE = {False: 0.15, True: 0.1}
"""By which part the TTFTs may differ, p50 and p99. Real time is later: Python and other programs take time."""
TIMERS = 50
"""How many timers a request waits for, about: those of the steps and of the 16 pieces of its transfer, and messages."""


@pytest.mark.paced
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
    line = {"seed": seed, **agreement.line()}
    print_line("realtime", line)
    assert line["requests"] > 15
    for simulated, measured in map(agreement.quantiles, SHARES):
        assert abs(measured - simulated) <= TOLERANCE[soak] * simulated + TIMERS * agreement.late, line
    if soak:
        record("realtime", line, HERE)
