"""The options of `pdx bench`."""

import argparse
from pathlib import Path

import pytest

from pdx_cli.bench.analysis.steps import Slo
from pdx_cli.bench.load.workload import Fixed, Traced
from pdx_cli.bench.options import LoadOptions, chunks, duration, factor, flags, rates, ratios, slo_of, workload
from pdx_cli.bench.results.files import check_new
from pdx_cli.errors import InputError
from pdx_cli.main import main


def test_times_and_factors() -> None:
    assert [duration(each) for each in ("30ms", "1.5s", "2min", "3", "1h")] == pytest.approx([0.03, 1.5, 120, 3, 3600])
    assert [factor(each) for each in ("1/32", "0.5", "2")] == [1 / 32, 0.5, 2.0]
    assert rates("2,4.5") == (2.0, 4.5)
    assert chunks("512,2048") == (512, 2048)
    assert ratios("1:3, 2:2") == ((1, 3), (2, 2))


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((duration, each) for each in ("", "0", "-1s", "1 day", "nan", "1e9s")),
        *((factor, each) for each in ("", "1/0", "-2", "x", "nan")),
        *((rates, each) for each in ("", "0", "2,,3", "x")),
        *((chunks, each) for each in ("", "0", "a")),
        *((ratios, each) for each in ("", "1", "0:1", "1:2:3")),
    ],
)
def test_what_is_refused(parse: "object", text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write for example"):
        parse(text)  # type: ignore[operator]


def test_flags_of_another_program() -> None:
    assert flags("--profile 'a b'") == ("--profile", "a b")
    with pytest.raises(argparse.ArgumentTypeError, match="a quote without its end; close it"):
        flags("--profile 'a")


TINY = str(Path(__file__).parents[4] / "examples" / "tiny-cpu.yaml")


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["http://h:1", "--ttft", "1 parsec"], "1 parsec is not a time"),
        (["http://h:1", "--compare"], "A URL has no object"),
        (["http://h:1", "--report", "x"], "leave out http://h:1"),
        (["127.0.0.1:8000"], "write http://127.0.0.1:8000"),
        (["models/qwen.jaml"], "There is no file models/qwen.jaml; name a YAML file"),
        (["qwen", "--devices", "2"], "--devices is for a comparison; add --compare"),
        (["qwen", "--chunks", "512"], "--chunks is for a comparison"),
        (["qwen", "--clean", "--ratios", "1:1"], "--ratios is for a comparison"),
        (["qwen", "--compare", "--engine", "sim"], "are for a YAML file"),
        (["http://h:1", "--sim-flags=--seed 1"], "are for a YAML file"),
        ([TINY, "--compare", "-n", "llm"], "leave out --namespace"),
        ([TINY, "--advise"], "leave out --advise"),
        (
            [TINY, "--compare", "--engine", "sim", "--devices", "2", "--ratios", "3:3"],
            "each arm has 2; set --devices 6",
        ),
        (["http://h:1", "--output", TINY], f"{TINY} cannot store the results; name another"),
        (["http://h:1", "--output", f"{TINY}/x"], "cannot store the results; name another"),
    ],
)
def test_command_lines_that_are_refused(argv: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["bench", *argv])
    except SystemExit as ended:
        code = int(str(ended.code))
    err = capsys.readouterr().err
    assert code == 2
    assert part in err
    assert len(err.splitlines()) == 1


def test_results_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_new(tmp_path)
    check_new(tmp_path / "a" / "b")
    (tmp_path / "result.json").touch()
    assert main(["bench", "http://h:1", "--output", str(tmp_path)]) == 2
    assert f"{tmp_path} has the results of another run; name another directory" in capsys.readouterr().err


def test_nothing_is_left_to_remove(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", TINY, "--clean", "--run-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "No comparison of tiny has left anything.\n"


def test_the_slo() -> None:
    spec = {"slo": {"ttftMilliseconds": 2000, "tpotMilliseconds": 30}}
    assert slo_of(None, None, spec) == Slo(2.0, 0.03)
    assert slo_of(0.5, None, spec) == Slo(0.5, 0.03)
    assert slo_of(None, None, {}) == Slo(1.0, 0.05)


def options(**more: object) -> LoadOptions:
    return LoadOptions(**{"isl": None, "osl": None, "trace": None, **more})  # type: ignore[arg-type]


def test_the_load(tmp_path: Path) -> None:
    assert workload(options(isl=4000, rates=(2.0,))) == (Fixed(4000, 200), (2.0,))
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_ms,input_tokens,output_tokens,prefix_blocks\n0,100,10,\n500,100,10,\n1000,200,10,\n")
    load, fixed = workload(options(trace=trace, scale_tokens=0.5, scale_time=2.0))
    assert isinstance(load, Traced)
    assert fixed == (6.0,)
    assert "tokens x 0.5" in load.name


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"scale_tokens": 0.5}, "name one with --trace"),
        ({"poisson": True}, "name one with --trace"),
        ({"trace": Path("x.csv"), "isl": 3}, "leave out --isl"),
        ({"trace": Path("x.csv"), "scale_time": 2.0, "rates": (1.0,)}, "both name a speed"),
        ({"trace": Path("/nowhere/x.csv")}, "There is no trace"),
    ],
)
def test_loads_that_are_refused(more: dict[str, object], part: str) -> None:
    with pytest.raises(InputError, match=part):
        workload(options(**more))
