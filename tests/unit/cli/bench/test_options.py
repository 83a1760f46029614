"""The options of `pdx bench`."""

import argparse
import asyncio
import io
import json
import time
from pathlib import Path

import pytest

from pdx_cli.bench import command
from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.bench.analysis.steps import Slo
from pdx_cli.bench.arguments import check_new
from pdx_cli.bench.compare import check_count
from pdx_cli.bench.load.workload import Fixed, Traced
from pdx_cli.bench.loads import LoadOptions, slo_of, workload
from pdx_cli.bench.options import chunks, factor, flags, intervals, rates, ratios
from pdx_cli.bench.targets import on_this_machine
from pdx_cli.errors import CommandError, InputError
from pdx_cli.inputs import target
from pdx_cli.inputs.target import Local
from pdx_cli.inputs.times import duration
from pdx_cli.main import main
from pdx_cli.runs.run_record import Run


def test_times_and_factors() -> None:
    assert [duration(each) for each in ("30ms", "1.5s", "2min", "3", "1h")] == pytest.approx([0.03, 1.5, 120, 3, 3600])
    assert [factor(each) for each in ("1/32", "0.5", "2")] == [1 / 32, 0.5, 2.0]
    assert rates("2,4.5") == (2.0, 4.5)
    assert chunks("512,2048") == (512, 2048)
    assert intervals("2,8") == (2, 8)
    assert ratios("1:3, 2:2") == ((1, 3), (2, 2))


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((duration, each) for each in ("", "0", "-1s", "1 day", "nan", "1e9s", "1000000000s")),
        *((factor, each) for each in ("", "1/0", "-2", "x", "nan", "1e9", "1e999999999")),
        *((rates, each) for each in ("", "0", "2,,3", "x")),
        *((chunks, each) for each in ("", "0", "-1", "a")),
        *((intervals, each) for each in ("", "0", "1", "a")),
        *((ratios, each) for each in ("", "1", "0:1", "1:2:3")),
    ],
)
def test_what_is_refused(parse: "object", text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"; write .*for example"):
        parse(text)  # type: ignore[operator]


def test_flags_of_another_program() -> None:
    assert flags("--profile 'a b'") == ("--profile", "a b")
    with pytest.raises(argparse.ArgumentTypeError, match="a quote without its end; close it"):
        flags("--profile 'a")


TINY = str(Path(__file__).parents[4] / "examples" / "tiny-cpu.yaml")


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
    monkeypatch.setattr("pdx_cli.commands.bench.target.target_of", lambda *_args: local)
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
        ({"trace": Path("x.csv"), "isl": 3}, "leave out --isl"),
        ({"trace": Path("x.csv"), "scale_time": 2.0, "rates": (1.0,)}, "both name a speed"),
        ({"trace": Path("/nowhere/x.csv")}, "There is no trace"),
    ],
)
def test_loads_that_are_refused(more: dict[str, object], part: str) -> None:
    with pytest.raises(InputError, match=part):
        workload(options(**more))


def test_nothing_to_measure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where a run has just ended, which is no target."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    (tmp_path / "pdx" / "tiny" / "logs").mkdir(parents=True)
    (tmp_path / "pdx" / "tiny" / "ended.json").write_text(
        json.dumps({"name": "tiny", "at": time.time(), "why": "it failed"})
    )
    for flag in ((), ("--compare",), ("--advise",)):
        assert main(["bench", *flag]) == 2
        assert capsys.readouterr().err == (
            "pdx: No local run was found, and no kubeconfig: name a PDDeployment, a YAML file or a URL.\n"
        )


def test_load_on_a_cluster_is_confirmed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []

    def interruptible(work: object) -> int:
        sent.append(work)
        return 0

    monkeypatch.setattr(command, "_interruptible", interruptible)
    monkeypatch.setattr(target, "check_kubeconfig", lambda path: None)
    monkeypatch.setattr("pdx_cli.commands.bench._check_listening", lambda url: None)
    argv = ["bench", "qwen", "-n", "llm"]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(argv) == 2
    assert "may serve users: add --yes, or use --advise, which sends none." in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", _Terminal("n\n"))
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith(
        "The load goes to the gateway of qwen, which may serve users. Send it? [y/N]"
    )
    assert sent == []
    monkeypatch.setattr("sys.stdin", _Terminal("y\n"))
    assert main(argv) == main([*argv, "--yes"]) == main([*argv, "--advise"]) == main(["bench", "http://h:1"]) == 0
    assert len(sent) == 4


@pytest.mark.parametrize(
    "argv",
    [
        ("http://user:secret@127.0.0.1:1/v1",),
        ("--admin", "http://127.0.0.1:2", "--url", "http://user:secret@127.0.0.1:1/v1"),
    ],
)
def test_a_server_that_refuses_connections(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported before anything is measured, without the password."""

    async def refuse(host: str, port: int) -> None:
        raise ConnectionRefusedError(111, f"{host}:{port}")

    def work(*_: object) -> int:
        raise AssertionError("it would measure")

    monkeypatch.setattr("asyncio.open_connection", refuse)
    monkeypatch.setattr(command, "run", work)
    assert main(["bench", *argv]) == 2
    assert capsys.readouterr().err == (
        "pdx: http://127.0.0.1:1 did not answer: connection refused; write the URL of an OpenAI-compatible server that "
        "runs.\n"
    )


def test_a_server_that_drops_packets(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is neither made nor refused."""

    async def wait(*_: object) -> None:
        async with asyncio.timeout(5):  # so that the test ends
            await asyncio.Event().wait()

    monkeypatch.setattr("asyncio.open_connection", wait)
    monkeypatch.setattr("pdx_cli.commands.bench.CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(command, "run", lambda *_: 0)
    assert main(["bench", "http://h:1"]) == 2
    assert capsys.readouterr().err == (
        "pdx: http://h:1 did not answer within 0.1 s; write the URL of an OpenAI-compatible server that runs.\n"
    )


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.machine
def test_the_plan_is_announced_when_the_server_has_answered(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "http://127.0.0.1:1", "--output", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert "did not answer" in error
    assert "about" not in error
