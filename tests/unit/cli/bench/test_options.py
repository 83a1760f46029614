"""The options of `pdx bench`."""

import argparse
import os
from pathlib import Path

import pytest

from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.bench.analysis.steps import Slo
from pdx_cli.bench.compare import check_count
from pdx_cli.bench.load.workload import Fixed, Traced
from pdx_cli.bench.options import LoadOptions, chunks, duration, factor, flags, rates, ratios, slo_of, workload
from pdx_cli.bench.results.files import check_new
from pdx_cli.bench.targets import on_this_machine
from pdx_cli.errors import CommandError, InputError
from pdx_cli.inputs.target import Local
from pdx_cli.local.requirements import default_limit
from pdx_cli.main import main
from pdx_cli.runs.run_record import Run


def test_times_and_factors() -> None:
    assert [duration(each) for each in ("30ms", "1.5s", "2min", "3", "1h")] == pytest.approx([0.03, 1.5, 120, 3, 3600])
    assert [factor(each) for each in ("1/32", "0.5", "2")] == [1 / 32, 0.5, 2.0]
    assert rates("2,4.5") == (2.0, 4.5)
    assert chunks("512,2048") == (512, 2048)
    assert ratios("1:3, 2:2") == ((1, 3), (2, 2))


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((duration, each) for each in ("", "0", "-1s", "1 day", "nan", "1e9s", "1000000000s")),
        *((factor, each) for each in ("", "1/0", "-2", "x", "nan", "1e9", "1e999999999")),
        *((rates, each) for each in ("", "0", "2,,3", "x")),
        *((chunks, each) for each in ("", "0", "a")),
        *((ratios, each) for each in ("", "1", "0:1", "1:2:3")),
    ],
)
def test_what_is_refused(parse: "object", text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"; write .*for example"):
        parse(text)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("--warm-up 0s", "--warm-up: 0s is too short; write more than 0, for example 30ms, 1.5s or 2min."),
        ("--ttft -1", "--ttft: -1 is too short; write more than 0, for example 30ms, 1.5s or 2min."),
        ("--duration 99999999s", "--duration: 99999999s is too long; write at most 2777h, for example 30ms, 1.5s or"),
        ("--rate 0", "--rate: 0 is too small; write more than 0, for example 4 or 2,4,8."),
        ("--rate 2,-1", "--rate: -1 is too small; write more than 0, for example 4 or 2,4,8."),
        ("--rate 1e9", "--rate: 1e9 is too large; write less than 1000000, for example 4 or 2,4,8."),
        ("--rate nan", "--rate: nan is not a list of rates; write for example 4 or 2,4,8."),
        ("--start-rate 0", "--start-rate: 0 is too small; write more than 0, for example 4 or 0.5."),
        ("--start-rate nan", "--start-rate: nan is not a rate; write for example 4 or 0.5."),
        ("--scale-tokens 0", "--scale-tokens: 0 is too small; write more than 0, for example 0.5 or 1/32."),
        ("--scale-time 1e9", "--scale-time: 1e9 is too large; write less than 1000000, for example 0.5 or 1/32."),
        ("--chunks 512,0", "--chunks: 0 is too small; write more than 0, for example 512,2048."),
        ("--rate=", "--rate: the value is empty; write for example 4 or 2,4,8."),
        ("--ttft=", "--ttft: the value is empty; write for example 30ms, 1.5s or 2min."),
        ("--start-rate=", "--start-rate: the value is empty; write for example 4 or 0.5."),
        ("--scale-tokens=", "--scale-tokens: the value is empty; write for example 0.5 or 1/32."),
        ("--ratios=", "--ratios: the value is empty; write for example 1:3,2:2."),
        ("--chunks=", "--chunks: the value is empty; write for example 512,2048."),
        ("--repeats=", "--repeats: the value is empty; write a whole number from 1 to 100."),
        ("--model=", "--model: the value is empty; name a model, or leave --model out."),
        ("--name=", "--name: the value is empty; name a PDDeployment of FILE, or leave --name out."),
    ],
)
def test_the_sentence_about_a_value_that_is_refused(
    argv: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "http://h:1", *argv.split()])
    assert capsys.readouterr().err.startswith(f"pdx bench: {sentence}")


def test_flags_of_another_program() -> None:
    assert flags("--profile 'a b'") == ("--profile", "a b")
    with pytest.raises(argparse.ArgumentTypeError, match="a quote without its end; close it"):
        flags("--profile 'a")


LIMIT = default_limit(os.cpu_count())
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
        (
            [TINY, "--compare", "--engine", "sim", "--devices", "1000"],
            f"--devices 1000 needs 1000 engines, and this machine starts at most {LIMIT}; write {LIMIT} or less.",
        ),
        ([TINY, "--sim-flags=--jitter 0"], "--sim-flags is for simulated engines; add --engine sim, or leave it out."),
        (["qwen", "--name", "x"], "--name selects a PDDeployment of a YAML file; name a file, or leave it out."),
        (["http://h:1", "-n", "x"], "--namespace selects a cluster; leave it out for a URL."),
        (["http://h:1", "--local"], "--local selects a run of this machine; leave it out for a URL."),
        (["--advise", "--rate", "2"], "--advise sends no load; leave out --rate."),
        (["qwen", "--advise", "--chat", "--isl", "5"], "--advise sends no load; leave out --isl."),
        (["qwen", "--advise", "--compare"], "--advise sends no load; leave out --compare."),
        (["qwen", "--advise", "--output", "x"], "--advise writes no files; leave out --output."),
        (["--report", "x", "--rate", "2"], "--report writes the page of a saved run; leave out --rate."),
        (["--report", "x", "--scale-tokens", "1/2"], "leave out --scale-tokens."),
        (["--report", "x", "--name", "y"], "leave out --name."),
        (["qwen", "--url", "ftp://x"], "ftp://x is not the URL of a server; write for example http://127.0.0.1:8000."),
        (["http://[::1"], "http://[::1 is not the URL of a server; write for example http://127.0.0.1:8000."),
        (["http://h:1", "--output", TINY], f"{TINY} cannot store the results; name another"),
        (["http://h:1", "--output", "/proc/x"], "/proc/x cannot store the results; name another"),
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
    assert not list(tmp_path.iterdir()), "what it has tried is removed"
    (tmp_path / "result.json").touch()
    assert main(["bench", "http://h:1", "--output", str(tmp_path)]) == 2
    assert f"{tmp_path} has the results of another run; name another directory" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://127.0.0.1:18999", "foo"])
def test_a_url_is_not_used_for_a_run_of_this_machine(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would not be measured."""
    admin = "http://127.0.0.1:1"
    run = Run("tiny", 1, 0.0, "Disaggregated", None, None, "sim", "m", "http://127.0.0.1:2", admin, ())
    local = Local("tiny", admin, run)
    monkeypatch.setattr("pdx_cli.commands.bench.target.target_of", lambda _args: local)
    assert main(["bench", "--url", url, "--rate", "1"]) == 2
    assert capsys.readouterr().err == (
        "pdx: --url is not used for a run of this machine; leave it out, or write the URL as NAME: "
        f"`pdx bench {url}`.\n"
    )


async def test_a_gateway_is_observed_by_its_admin_port_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def arm(_client: object, _admin: str) -> Arm:
        return Arm("P:D 1:1", split=True, prefill=1, decode=1)

    monkeypatch.setattr("pdx_cli.bench.targets._arm", arm)
    local = Local("127.0.0.1:1", "http://127.0.0.1:1")
    async with on_this_machine(local, sends=False) as found:
        assert (found.name, found.arm.split) == ("127.0.0.1:1", True)
    with pytest.raises(CommandError, match="--admin alone names no server for the requests; add --url"):
        async with on_this_machine(local, sends=True):
            raise AssertionError("it would send requests to an admin port")


def test_more_engines_than_this_machine_starts() -> None:
    arms = [Arm("aggregated 20", aggregated=20), Arm("P:D 4:12", split=True, prefill=4, decode=12)]
    check_count(arms[1:], None, 16)
    with pytest.raises(InputError, match=r"^aggregated 20 needs 20 engines, .* at most 16; lower the replicas in FILE"):
        check_count(arms, None, 16)


def test_one_object_of_several_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(TINY).read_text()
    other = text.replace("metadata: {name: tiny}", "metadata: {name: tiny2}")
    (tmp_path / "two.yaml").write_text(f"{text}\n---\n{other}")
    argv = ["bench", str(tmp_path / "two.yaml"), "--clean", "--run-dir", str(tmp_path)]
    assert main(argv) == 2
    assert "select one with --name: tiny, tiny2." in capsys.readouterr().err
    assert main([*argv, "--name", "tiny2"]) == 0
    assert capsys.readouterr().err == "No comparison of tiny2 has left anything.\n"


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
