"""Run directories: one owner, records that end with it, and `pdx status`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pdx_cli.errors import CommandError
from pdx_cli.main import main
from pdx_cli.runs.logs import tail
from pdx_cli.runs.run_record import STATE, Process, Run, RunDirectory, default_root

RUN = Run(
    name="tiny",
    pid=1,
    started=0.0,
    mode="Disaggregated",
    connector="NIXL",
    order="PrefillFirst",
    engine="sim",
    model="tiny",
    endpoint="http://127.0.0.1:1",
    admin="http://127.0.0.1:1",
    processes=(Process("prefill-0", 2**22 + 1, "http://127.0.0.1:1", "/logs/prefill-0.log"),),
)


def test_a_record_lives_as_long_as_its_owner(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "tiny")
    with directory.held("tiny"):
        directory.write(RUN)
        assert directory.live() == RUN
    assert directory.live() is None
    assert not (directory.path / STATE).exists()


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with directory.held("tiny"):
        directory.write(RUN)
        with pytest.raises(CommandError, match="tiny already runs in"), directory.held("tiny"):
            pass
        assert directory.live() == RUN
    with directory.held("tiny"):
        pass


def test_status_removes_the_record_of_an_ended_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    directory = RunDirectory(default_root() / "tiny")
    with directory.held("tiny"):
        pass
    directory.write(RUN)
    assert main(["status"]) == 0
    assert capsys.readouterr().out == (
        f"Nothing runs; start a deployment with `pdx up FILE`.\nThe logs of the last run are in {directory.logs}.\n"
    )
    assert not (directory.path / STATE).exists()


def test_status_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--run-dir", str(tmp_path / "nothing")]) == 0
    assert capsys.readouterr().out == "Nothing runs; start a deployment with `pdx up FILE`.\n"


@pytest.mark.machine
def test_status_before_the_gateway_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = RunDirectory(tmp_path / "tiny")
    other = RunDirectory(tmp_path / "other")
    with directory.held("tiny"), other.held("other"):
        directory.write(RUN)
        other.write(replace(RUN, name="other", connector=None, order=None, mode="Aggregated"))
        assert main(["status", "--run-dir", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "other: tiny, Aggregated, sim, up" in out
        assert "tiny: tiny, NIXL PrefillFirst, sim, up" in out
        assert "the gateway does not answer yet" in out
        assert "dead" in out
        assert "/logs/prefill-0.log" in out
        assert main(["status", "--run-dir", str(directory.path), "--json"]) == 0
        (report,) = json.loads(capsys.readouterr().out)
    assert report["order"] == "PrefillFirst"
    assert report["gateway"] is None
    assert report["processes"][0]["alive"] is False


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"name": "tiny"}', "\x00"])
def test_unreadable_record(content: str, tmp_path: Path) -> None:
    (tmp_path / STATE).write_text(content)
    assert RunDirectory(tmp_path).live() is None


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert tail(log, 3) == ()
    log.write_bytes(b"first\n" * 9000 + b"\x1b[32mgreen\x1b[0m\n\n 10%\r 20%\r\nbad \xff byte\n")
    assert tail(log, 4) == ("green", " 10%", " 20%", "bad � byte")
