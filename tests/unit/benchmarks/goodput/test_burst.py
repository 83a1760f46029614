"""Bursts in short simulations with the gateway's code: above the capacity of P's, at half of it, after a step."""

import pytest

from benchmarks.goodput.burst import plot
from benchmarks.goodput.burst.__main__ import STEP, Found, document, holds, table
from benchmarks.goodput.burst.experiment import Setting, compare, prefill_capacity, run, simulate, stepped
from benchmarks.goodput.engine import EngineModel
from benchmarks.goodput.measures import Slo
from benchmarks.goodput.policies import DEFAULT, WITH_SLO
from benchmarks.goodput.simulation import Layout, Record
from benchmarks.goodput.synthetic import generate
from pdx_proxy.balancing.decode.placement import Place
from pdx_sim.profiles import LLAMA_70B

SETTING = Setting(EngineModel.of(LLAMA_70B), Slo(5.0, 0.05), Layout(2, 2))
TRACE = generate("no-sharing", 1, 500)
CAPACITY = 4.1
"""Requests per second that two P's can prefill within the SLO, about."""


def test_the_capacity_of_the_p_s_is_found() -> None:
    few = generate("no-sharing", 1, 120)
    found = prefill_capacity(SETTING, few)
    shares = [
        run(SETTING, DEFAULT, SETTING.layout, few.at_rate(rate), rate).outcome.share for rate in (found, 1.1 * found)
    ]
    assert shares[0] >= 0.9 > shares[1]


@pytest.mark.parametrize("load", [1.1, 1.3])
def test_above_the_capacity_of_p_s_bursts_serve_more_within_the_slo(load: float) -> None:
    runs = compare(SETTING, TRACE, load * CAPACITY)
    with_slo, without, aggregated, least = (run.outcome.share for run in runs.values())
    assert with_slo >= max(without, aggregated, least)
    assert without < 0.6 < 0.9 < with_slo
    assert len(runs["with the SLO"].placed) > 50
    assert not runs["without"].placed


@pytest.mark.parametrize("name", ["no-sharing", "shared-prompt", "agents"])
def test_at_half_of_the_capacity_no_request_bursts_and_nothing_becomes_worse(name: str) -> None:
    trace = generate(name, 1, 500)
    rate = {"no-sharing": CAPACITY, "shared-prompt": 19.0, "agents": 3.0}[name] / 2
    runs = compare(SETTING, trace, rate)
    assert runs["with the SLO"].count(Place.BURST) == 0
    assert runs["with the SLO"].outcome.share >= runs["without"].outcome.share


def step() -> tuple[list[Record], list[tuple[float, Place]]]:
    before, after, _ = STEP
    times = stepped(TRACE, before * CAPACITY, after * CAPACITY, 60.0)
    records, router = simulate(SETTING, WITH_SLO, Layout(2, 1), times)
    return records, router.placed


def test_bursts_end_within_10_seconds_after_the_load_has_fallen() -> None:
    records, placed = step()
    came = [record.at for record in records]
    assert sum(at < 60 for at in came) == pytest.approx(60 * 1.3 * CAPACITY, rel=0.15)
    assert came[-1] > 120
    bursts = [at for at, why in placed if why is Place.BURST]
    assert bursts
    assert max(bursts) <= 70.0
    svg = plot.svg(came, placed, 60.0, 120.0, "a step")
    assert svg.count("<polyline") == 3
    assert "bursts" in svg


def test_the_table_shows_each_load_and_the_program_fails_where_bursts_harm() -> None:
    runs = {load: compare(SETTING, TRACE, load * CAPACITY) for load in (0.5, 1.1)}
    found = Found("made", CAPACITY, runs, 3.0, 12)
    text = table([found], SETTING)
    assert "| made | 1.1 (4.51 req/s) |" in text
    assert "12 bursts before the fall; last burst 3.0 s after the fall" in text
    assert (
        document(found)["runs"]["1.1"]["with the SLO"]["share"] == runs[1.1]["with the SLO"].outcome.document()["share"]
    )
    assert holds(found)
    assert not holds(Found("made", CAPACITY, runs, 11.0, 12))
    worse = {0.5: runs[0.5], 1.1: {**runs[1.1], "with the SLO": runs[1.1]["without"]}}
    assert not holds(Found("made", CAPACITY, worse, 0.0, 12))
