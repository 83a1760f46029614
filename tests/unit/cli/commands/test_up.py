"""`pdx up`: its help, and what it reports before anything starts."""

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from pdx_cli.commands.up import EXAMPLE
from pdx_cli.errors import ExitCode
from pdx_cli.local import ports
from pdx_cli.local.engines import default_limit
from pdx_cli.main import main

TINY = str(Path(__file__).parents[4] / "examples" / "tiny-cpu.yaml")


@pytest.mark.parametrize("seconds", ["nan", "-1", "inf", "soon"])
def test_invalid_start_timeout(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", TINY, "--start-timeout", seconds])
    assert ended.value.code == 2
    message = f"--start-timeout: {seconds} is not a time; write seconds from 0 to 86400."
    assert capsys.readouterr().err == f"pdx up: {message}\n"


@pytest.mark.machine
def test_api_keys_of_a_cluster_are_not_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["--set", "spec.gateway.auth.secretRef.name=c", "--set", "spec.engine.apiKeySecretRef.name=e"]
    (tmp_path / "file").touch()  # ends the run after the message
    argv = ["up", TINY, "--engine", "sim", "--run-dir", str(tmp_path / "file" / "run"), *keys]
    assert main([*argv, "--port", str(ports.allocate(1)[0])]) == ExitCode.INVALID
    fields = "spec.gateway.auth and spec.engine.apiKeySecretRef"
    message = f"{fields} each name a Secret of a cluster: this run checks no API keys.\n"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("port", ["0", "-1", "65536", "abc"])
def test_a_port_that_does_not_exist(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", TINY, "--engine", "sim", f"--port={port}"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"pdx up: --port: {port} is not a port; write a number from 1 to 65535.\n"


@pytest.mark.machine
def test_a_port_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server((ports.HOST, 0))) as server:
        port = server.getsockname()[1]
        argv = ["up", TINY, "--engine", "sim", "--port", str(port), "--run-dir", str(tmp_path)]
        assert main(argv) == ExitCode.INVALID
    assert capsys.readouterr().err == f"pdx: Port {port} is in use or not allowed; choose another with --port.\n"


def test_a_missing_model(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/bin/vllm")
    assert main(["up", TINY, "--set", "spec.model.source.path=/nowhere"]) == ExitCode.INVALID
    message = capsys.readouterr().err
    assert message == "pdx: There is no model at /nowhere; create a tiny one with `pdx tiny-model /nowhere`.\n"


def test_the_help_names_the_whole_rule_for_the_number_of_engines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"(default: 4 per core, at least {default_limit(1)}, {default_limit(os.cpu_count())} here)" in text


def test_vllm_that_is_not_installed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert main(["up", TINY]) == 1
    message = capsys.readouterr().err
    for part in ("the extra `cpu` of pdx-serving (6.6 GB more)", "`make install`", "--engine sim"):
        assert part in message


def test_without_a_file_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert EXAMPLE.read_text() == Path(TINY).read_text(), "make generate"
    assert main(["up", "--engine", "sim", "--set", "spec.decode.replicas=0"]) == ExitCode.INVALID
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"pdx: No FILE is named, so this runs PDX's example: {EXAMPLE}".removeprefix("pdx: ")
    assert "spec.decode.replicas is 0" in second


def test_a_pool_without_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    argv = ["up", TINY, "--engine", "sim", "--set", "spec.decode.replicas=0", "--run-dir", str(run_dir)]
    assert main(argv) == ExitCode.INVALID
    assert "spec.decode.replicas is 0" in capsys.readouterr().err
    assert not run_dir.exists()


@pytest.mark.parametrize("directory", ["file", "file/run"])
def test_a_run_directory_that_cannot_be_made(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["up", TINY, "--engine", "sim", "--run-dir", str(tmp_path / directory)]) == ExitCode.INVALID
    assert (
        "cannot store the run's files: Not a directory; choose another directory with --run-dir."
        in capsys.readouterr().err
    )


def test_too_many_engines_for_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["up", TINY, "--engine", "sim", "--set", "spec.prefill.replicas=1000"]
    assert main([*argv, "--max-engines", "20"]) == 2
    assert "has 1001 engines, and `pdx up` starts at most 20 on this machine; lower spec" in capsys.readouterr().err
    assert default_limit(2) == 16
    assert default_limit(64) == 256
