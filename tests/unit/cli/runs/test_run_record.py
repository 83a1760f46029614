"""Run directories: one owner, records that end with it, and `pdx status`."""

import contextlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pdx_api.verification import Finding, Verdict
from pdx_cli.commands.status import _in_flight, _kv
from pdx_cli.errors import CommandError, ExitCode
from pdx_cli.main import main
from pdx_cli.runs.logs import tail
from pdx_cli.runs.run_record import STATE, Ending, Process, Run, RunDirectory, default_root

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
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Nothing runs; start a deployment with `pdx up FILE`."
    assert re.fullmatch(rf"tiny ended \d+ s ago: `pdx up` was killed. Its logs are in {directory.logs}.", lines[1])
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


def test_status_without_the_report_of_an_end(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "trio")
    directory.logs.mkdir(parents=True)
    log = directory.log("decode-0")
    log.touch()
    os.utime(log, (5.0, 5.0))
    assert directory.ending() == Ending("trio", 5.0)


@pytest.mark.machine
@pytest.mark.parametrize("columns", [60, 80, 200])
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
        assert "  logs: /logs\n" in out
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


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        (("Warm", "Warm"), "KV moves: verified in 1 of 1 pair"),
        (("Warming", "Warm"), "KV not proved now: 1 engine does not serve"),
        (("Warming", "Cold"), "KV not proved now: 2 engines do not serve"),
    ],
)
def test_status_claims_only_what_the_engines_present_state_allows(states: tuple[str, ...], sentence: str) -> None:
    finding = Finding(Verdict.VERIFIED, pairs=1, possible=1).as_json()
    endpoints = [{"name": f"h:{number}", "state": state} for number, state in enumerate(states)]
    assert _kv({"mode": "Disaggregated", "kvTransfer": finding, "endpoints": endpoints}) == sentence


def test_one_request_in_flight_is_singular() -> None:
    assert (
        _in_flight({"ready": True, "inFlight": {"requests": 1, "decode": 1}}) == "ready; in flight: 1 request, 1 decode"
    )
