"""The experiment: finished cells are kept, loads go on until the goodput is found, and what is required is checked."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import pytest

from benchmarks.goodput import campaign, plot, report
from benchmarks.goodput.__main__ import main
from benchmarks.goodput.campaign import Cell, Plan, Runner, capacity, curve
from benchmarks.goodput.engine import EngineModel
from benchmarks.goodput.measures import Outcome, Slo
from benchmarks.goodput.simulation import Layout
from pdx_sim.profiles import LLAMA_70B

PLAN = Plan(EngineModel.of(LLAMA_70B), Slo(5.0, 0.05), seed=1, requests=40)
LAYOUT = Layout(2, 1)
CELL = Cell("agents", "LeastRequests", LAYOUT, 2.0)
DAY = date(2026, 1, 2)


def outcome(rate: float, share: float) -> Outcome:
    return Outcome(rate, share, share, 1.0, 0.25, 1.0, 2.0, 0.01, 0.02)


@dataclass
class Found:
    """Stands for a runner: the share falls with the rate as `share` says."""

    share: Callable[[str, float], float]
    plan: Plan = PLAN

    def outcomes(self, cells: list[Cell]) -> list[Outcome]:
        return [outcome(cell.rate, self.share(cell.policy, cell.rate)) for cell in cells]


def test_a_finished_cell_is_kept_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    (first,) = Runner(PLAN, tmp_path, 1, lines.append).outcomes([CELL])
    assert len(lines) == 1

    def fail(*_: object) -> Outcome:
        raise AssertionError("a finished cell ran again")

    monkeypatch.setattr(campaign, "run", fail)
    assert Runner(PLAN, tmp_path, 1, lines.append).outcomes([CELL, CELL]) == [first, first]
    assert len(lines) == 1


def test_a_damaged_cell_is_run_again(tmp_path: Path) -> None:
    runner = Runner(PLAN, tmp_path, 1, lambda _: None)
    (first,) = runner.outcomes([CELL])
    (path,) = tmp_path.glob("*.json")
    path.write_text("{")
    (again,) = Runner(PLAN, tmp_path, 1, lambda _: None).outcomes([CELL])
    assert replace(again, seconds=0) == replace(first, seconds=0)


def test_a_cell_depends_on_all_that_its_result_depends_on(tmp_path: Path) -> None:
    others = [
        replace(CELL, rate=2.1),
        replace(CELL, policy="LeastLoad"),
        replace(CELL, layout=Layout(2, 2)),
        replace(CELL, source="no-sharing"),
    ]
    keys = {CELL.key(PLAN), *(cell.key(PLAN) for cell in others), CELL.key(replace(PLAN, seed=2))}
    keys.add(CELL.key(replace(PLAN, slo=Slo(4.0, 0.05))))
    path = tmp_path / "some.csv"
    for text in ("a", "b"):
        path.write_text(text)
        keys.add(Cell(str(path), "LeastRequests", LAYOUT, 2.0).key(PLAN))
    assert len(keys) == 9
    assert CELL.key(PLAN) == replace(CELL).key(PLAN)


@pytest.mark.machine
def test_two_processes_find_the_same_as_one(tmp_path: Path) -> None:
    cells = [CELL, replace(CELL, rate=3.0)]
    one, two = (Runner(PLAN, tmp_path / str(jobs), jobs, lambda _: None).outcomes(cells) for jobs in (1, 2))
    assert [replace(each, seconds=0) for each in one] == [replace(each, seconds=0) for each in two]


def test_loads_go_on_upwards_or_downwards_until_the_share_crosses_90_percent() -> None:
    up = curve(Found(lambda _, rate: 0.99 if rate < 17 else 0.5), "agents", "ExpectedWait", LAYOUT, 10.0, (0.5, 1.0))  # type: ignore[arg-type]
    assert (min(up), max(up) > 1.7, sorted(up)[-2] < 1.7) == (0.5, True, True)
    down = curve(Found(lambda _, rate: 0.99 if rate < 3 else 0.5), "agents", "ExpectedWait", LAYOUT, 10.0, (0.5, 1.0))  # type: ignore[arg-type]
    assert (min(down) < 0.3, max(down)) == (True, 1.0)


@pytest.mark.parametrize("edge", [0.4, 2.0, 11.0])
def test_the_capacity_is_found_from_above_and_from_below(edge: float) -> None:
    found = capacity(Found(lambda _, rate: 0.95 if rate <= edge else 0.85), "agents", LAYOUT)  # type: ignore[arg-type]
    assert found == pytest.approx(edge, rel=0.03)


def comparison(**edges: float) -> report.Comparison:
    names = {"own": "ExpectedWait", "least": "LeastRequests", "peer": "Dynamo"}
    loads = (0.5, 1.0, 1.5)
    curves = {
        names[key]: {load: outcome(load * 10, 0.95 if load * 10 <= edge else 0.85) for load in loads}
        for key, edge in edges.items()
    }
    return report.Comparison("some", 100, 0.4, LAYOUT, 10.0, loads, curves)


def test_what_is_required_is_checked_against_the_best_every_peer_and_the_baseline() -> None:
    worse = report.verdicts(comparison(own=5, least=5, peer=10))
    assert [holds for _, holds, _ in worse] == [False, False, False]
    better = report.verdicts(comparison(own=10, least=5, peer=5))
    assert [holds for _, holds, _ in better] == [True, True, True]
    alone = report.verdicts(replace(comparison(own=10, least=10, peer=10), shared=0.0))
    assert [text.endswith("the best") for text, _, _ in alone] == [True], "without sharing, only the best counts"


def test_tables_plot_and_json_have_every_policy(tmp_path: Path) -> None:
    found = comparison(own=10, least=5, peer=5)
    table = report.markdown(report.table(found))
    svg = plot.svg(found, report.title(found))
    for name in found.curves:
        assert f"| {name} |" in table
        assert name in svg
    assert "12.50" in table, "the goodput, half way between the loads"
    document = report.document(PLAN, [found], DAY)
    report.write(tmp_path, document, report.text(PLAN, [found], DAY, {"some": "some.svg"}), {"some.svg": svg})
    read = json.loads((tmp_path / "results.json").read_text())
    assert read["traces"][0]["policies"]["ExpectedWait"]["goodput"] == pytest.approx(12.5)
    assert "NOT MET" not in report.terminal(report.table(found))


def test_the_program_writes_its_results_and_prints_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--trace",
        "agents",
        "--requests",
        "30",
        "--prefill",
        "1",
        "--decode",
        "1",
        "--loads",
        "0.5,1",
        "--jobs",
        "1",
    ]
    flags += ["--policy", "LeastRequests", "--policy", "round robin", "--jobs", "1", "--results", str(tmp_path / "out")]
    assert main([*flags, "--cache", str(tmp_path / "cache")]) == 0, "without the default nothing is required"
    assert "LeastRequests" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["agents.svg", "results.json", "results.md"]


def test_a_trace_that_is_not_there_is_one_sentence_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", "/nowhere/trace.csv"]) == 2
    assert capsys.readouterr().err.startswith("There is no trace /nowhere/trace.csv")


@pytest.mark.parametrize("flags", [["--prefill", "0"], ["--ttft", "-1"], ["--loads", "0,1"], ["--policy", "fastest"]])
def test_a_wrong_flag_is_refused(flags: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(flags)
