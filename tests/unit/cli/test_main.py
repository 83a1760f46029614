"""The command line: help, version, and errors before anything starts."""

import importlib.util
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pdx_cli.local import ports
from pdx_cli.main import COMMANDS, main

EXAMPLES = Path(__file__).parents[3] / "examples"
TINY = str(EXAMPLES / "tiny-cpu.yaml")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"pdx {command}" in out
    assert "examples:" in out


@pytest.mark.machine
def test_help_names_every_command_and_imports_none() -> None:
    code = "import sys; from pdx_cli.main import main\ntry: main(['--help'])\nfinally: print(*sorted(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = shown.splitlines()[-1].split()
    for command, (module, summary) in COMMANDS.items():
        assert command in shown
        assert summary[:20] in shown
        assert importlib.util.find_spec(module) is not None
        assert module not in modules
    assert not {"pydantic", "aiohttp", "rich"} & set(modules)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("pdx 0.")


@pytest.mark.parametrize("argv", [[], ["nope"], ["up"], ["up", TINY, "--engine", "tgi"]])
def test_usage_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["nan", "-1", "inf", "soon"])
def test_invalid_start_timeout(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", TINY, "--start-timeout", seconds])
    assert ended.value.code == 2
    message = f"argument --start-timeout: {seconds} is not a time; write seconds from 0 to 86400"
    assert capsys.readouterr().err == f"pdx up: {message}\n"


@pytest.mark.machine
def test_api_keys_of_a_cluster_are_not_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["--set", "spec.gateway.auth.secretRef.name=c", "--set", "spec.engine.apiKeySecretRef.name=e"]
    argv = ["up", TINY, "--engine", "sim", "--set", "spec.decode.replicas=0", "--run-dir", str(tmp_path), *keys]
    assert main([*argv, "--port", str(ports.allocate(1)[0])]) == 1
    fields = "spec.gateway.auth and spec.engine.apiKeySecretRef"
    message = f"{fields} each name a Secret of a cluster: this run checks no API keys.\n"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("port", ["0", "-1", "65536"])
def test_a_port_that_does_not_exist(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", TINY, "--engine", "sim", "--port", port]) == 1
    assert capsys.readouterr().err == f"pdx: Port {port} does not exist; write one from 1 to 65535.\n"


@pytest.mark.machine
def test_a_port_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server((ports.HOST, 0))) as server:
        port = server.getsockname()[1]
        assert main(["up", TINY, "--engine", "sim", "--port", str(port), "--run-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"pdx: Port {port} is in use or not allowed; choose another with --port.\n"


def test_a_missing_model(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/bin/vllm")
    assert main(["up", TINY, "--set", "spec.model.source.path=/nowhere"]) == 1
    message = capsys.readouterr().err
    assert message == "pdx: There is no model at /nowhere; create a tiny one with `pdx tiny-model /nowhere`.\n"


def test_vllm_that_is_not_installed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert main(["up", TINY]) == 1
    assert "`make install`" in capsys.readouterr().err


@pytest.mark.machine
def test_a_pool_without_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = str(ports.allocate(1)[0])
    argv = ["up", TINY, "--engine", "sim", "--set", "spec.decode.replicas=0", "--run-dir", str(tmp_path)]
    assert main([*argv, "--port", port]) == 1
    assert "spec.decode.replicas is 0" in capsys.readouterr().err


def test_a_run_directory_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["up", TINY, "--engine", "sim", "--run-dir", str(tmp_path / "file" / "run")]) == 1
    assert "cannot store the run's files: Not a directory." in capsys.readouterr().err


def test_tiny_model_keeps_existing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").touch()
    assert main(["tiny-model", str(tmp_path)]) == 1
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--prefill-chunk 0", "--prefill-chunk is 0; write 1 or more."),
        ("--jitter 5", "--jitter is 5.0; write a number from 0 to 1."),
        ("--decode-token-seconds nan", "--decode-token-seconds is nan; write 0 or more."),
        ("--lease-seconds -1", "--lease-seconds is -1.0; write 0.001 or more."),
        ("--block-size 1 --num-blocks 9", "num_blocks * block_size must hold max_model_len tokens."),
        (
            "--listen 127.0.0.1:1 --side-channel 127.0.0.1:1",
            "HTTP API and side channel are both on 127.0.0.1:1; name two addresses.",
        ),
    ],
)
def test_sim_rejects_invalid_values(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--role", "both", *flags.split()]) == 1
    assert capsys.readouterr().err == f"pdx: {message}\n"
