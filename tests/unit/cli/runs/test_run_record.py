"""Run directories: one owner, records that end with it, and `pdx status`."""

import contextlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pdx_cli.errors import CommandError, ExitCode, InputError
from pdx_cli.main import main
from pdx_cli.runs.logs import tail
from pdx_cli.runs.run_record import STATE, Ending, RunDirectory, default_root, directories
from tests.unit.cli.runs.records import RUN


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


REFUSED = InputError("Port 1 is in use.")


def _fail(directory: RunDirectory, error: CommandError) -> None:
    """Hold a directory until an error."""
    with pytest.raises(type(error)), directory.held("tiny"):
        raise error


def test_a_refused_start_is_no_run(tmp_path: Path) -> None:
    _fail(RunDirectory(tmp_path / "tiny"), REFUSED)
    assert directories(tmp_path, ended=True) == []


def test_a_refused_start_keeps_the_record_of_the_run_before(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "tiny")
    _fail(directory, CommandError("prefill-0 ended."))
    before = directory.ending()
    assert before.why == "prefill-0 ended"
    _fail(directory, REFUSED)
    assert directory.ending() == before
    with directory.held("tiny"):
        pass
    assert directory.ending().why == ""


def test_a_refused_start_records_that_the_run_before_was_killed(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "tiny")
    directory.logs.mkdir(parents=True)
    directory.write(RUN)
    _fail(directory, REFUSED)
    assert directory.read() is None
    assert directory.ending().why == "`pdx up` was killed"


def test_status_removes_the_record_of_an_ended_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    directory = RunDirectory(default_root() / "tiny")
    with directory.held("tiny"):
        pass
    directory.write(RUN)
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Nothing runs; start a deployment with `pdx up FILE`."
    ended = rf"tiny ended at most \d+ s ago: `pdx up` was killed. Its logs are in {directory.logs}."
    assert re.fullmatch(ended, lines[1])
    assert len(lines) == 2
    assert not (directory.path / STATE).exists()


def _ended(directory: RunDirectory, name: str, error: str = "") -> None:
    with contextlib.suppress(CommandError), directory.held(name):
        directory.write(replace(RUN, name=name))
        if error:
            raise CommandError(error, ("the end of the log",))


def test_status_names_each_ended_run_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _ended(
        RunDirectory(tmp_path / "trio"), "trio", "decode-0 was killed by signal 9 (SIGKILL); /l/decode-0.log ends with:"
    )
    _ended(RunDirectory(tmp_path / "other"), "solo")
    assert main(["status", "--run-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^trio ended \d s ago: decode-0 was killed by signal 9 \(SIGKILL\)\. Its logs are in ", out, re.M)
    assert re.search(rf"^solo ended \d s ago\. Its logs are in {tmp_path}/other/logs\.$", out, re.M)
    assert out.count("\n") == 3


@pytest.mark.machine
def test_a_run_that_ended_long_ago_is_not_listed_below_one_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("new", "old"):
        _ended(RunDirectory(tmp_path / name), name)
    RunDirectory(tmp_path / "old").clear(Ending("old", 0.0))
    directory = RunDirectory(tmp_path / "tiny")
    with directory.held("tiny"):
        directory.write(RUN)
        assert main(["status", "--run-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "new ended" in out
    assert "old ended" not in out


def test_the_logs_of_a_larger_run_before_are_removed(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.logs.mkdir()
    kept = {"gateway.log", "prefill.log", "my-decode.log", "prefill-0.txt"}
    for name in (*kept, "prefill-7.log", "aggregated-0.log", "lmcache-server-decode-12.log"):
        (directory.logs / name).touch()
    directory.remove_engine_logs()
    assert {path.name for path in directory.logs.iterdir()} == kept


def test_status_without_the_report_of_an_end(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "trio")
    directory.logs.mkdir(parents=True)
    log = directory.log("decode-0")
    log.touch()
    os.utime(log, (5.0, 5.0))
    assert directory.ending() == Ending("trio", 5.0, is_exact=False)
    assert directory.ending().sentence(9.0) == "trio ended at most 4 s ago."


def test_the_end_of_a_killed_run_is_when_the_reaper_wrote(tmp_path: Path) -> None:
    """The engines' logs end long before, because idle engines write nothing."""
    directory = RunDirectory(tmp_path)
    with directory.held("tiny"):
        pass
    directory.write(RUN)
    for log, text, at in ((directory.log("decode-0"), "serving", 5.0), (directory.reaper_log, "ended", 90.0)):
        log.write_text(text)
        os.utime(log, (at, at))
    assert directory.live() is None
    assert directory.ending() == Ending("tiny", 90.0, "`pdx up` was killed")


def test_a_run_that_begins_has_not_ended(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "tiny")
    _ended(directory, "tiny")
    with directory.held("tiny"):
        assert directories(tmp_path, ended=True) == []
    assert directories(tmp_path, ended=True) == [directory]


@pytest.mark.machine
@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_status_fits_its_width(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    directory = RunDirectory(tmp_path / "tiny")
    with directory.held("tiny"):
        directory.write(RUN)
        assert main(["status", "--run-dir", str(tmp_path)]) == 0
    rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith(("  process", "  prefill-0"))]
    assert len(rows) == 2
    assert all(len(row) <= columns and row == row.rstrip() for row in rows)
    assert [row.split()[1] for row in rows] == ["state", "dead"]


@pytest.mark.machine
@pytest.mark.parametrize("command", ["doctor", "top"])
def test_the_name_of_an_ended_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    directory = RunDirectory(default_root() / "trio")
    _ended(directory, "trio", "decode-0 exited with code 1; /l/decode-0.log ends with:")
    directory.log("decode-0").write_text("loading\nRuntimeError: out of paper\nbye\n")
    assert main([command, "trio"]) == ExitCode.INVALID
    sentence, detail = capsys.readouterr().err.splitlines()
    assert re.match(r"pdx: trio ended \d s ago: decode-0 exited with code 1\. Its logs are in ", sentence)
    assert detail.strip() == "decode-0: RuntimeError: out of paper"
    assert main([command, "nix"]) == ExitCode.INVALID
    assert "No local run named nix was found" in capsys.readouterr().err
    assert main([command]) == ExitCode.INVALID
    assert capsys.readouterr().err.startswith("pdx: trio ended ")
    directory.clear(Ending("trio", 0.0))
    assert main([command]) == ExitCode.INVALID
    assert "No local run was found" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--local"]], ids=["anywhere", "here"])
@pytest.mark.parametrize("command", ["doctor", "top"])
def test_a_name_that_is_nearly_that_of_a_run(
    command: str,
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    directory = RunDirectory(default_root() / "tiny")
    with directory.held("tiny"):
        directory.write(RUN)
        assert main([command, "tniy", *flags]) == ExitCode.INVALID
    assert capsys.readouterr().err == "pdx: No local run is named tniy; did you mean tiny?\n"


def test_status_without_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nothing"))
    for argv in (["status"], ["status", "--run-dir", str(tmp_path)]):
        assert main(argv) == 0
        assert capsys.readouterr().out == "Nothing runs; start a deployment with `pdx up FILE`.\n"


@pytest.mark.parametrize("command", ["status", "top", "doctor"])
def test_a_run_directory_that_does_not_exist(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--run-dir", str(tmp_path / "no")])
    assert ended.value.code == ExitCode.INVALID
    what = "name the directory of a run, or the parent of several"
    assert capsys.readouterr().err == f"pdx {command}: --run-dir: {tmp_path}/no does not exist; {what}.\n"


def test_status_for_programs_has_the_runs_that_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = RunDirectory(tmp_path / "trio")
    _ended(directory, "trio", "decode-0 exited with code 1; /l/decode-0.log ends with:")
    assert main(["status", "--run-dir", str(tmp_path), "-o", "json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert 0 <= report.pop("endedSecondsAgo") < 60
    assert report == {
        "name": "trio",
        "running": False,
        "endedExactly": True,
        "why": "decode-0 exited with code 1",
        "logs": str(directory.logs),
    }
    assert main(["status", "--run-dir", str(tmp_path), "-o", "name"]) == 0
    assert capsys.readouterr().out == ""


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
        assert "  logs: /logs\n" in out
        assert main(["status", "--run-dir", str(directory.path), "--json"]) == 0
        (report,) = json.loads(capsys.readouterr().out)
    assert report["order"] == "PrefillFirst"
    assert report["gateway"] is None
    assert report["running"] is True
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
