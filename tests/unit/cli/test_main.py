"""The command line: help, version, and errors before anything starts."""

import importlib.util
import json
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from pdx_cli.errors import EXIT_CODES
from pdx_cli.local import ports
from pdx_cli.local.requirements import default_limit
from pdx_cli.main import COMMANDS, PLUGIN_COMMANDS, main

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
    message = f"--start-timeout: {seconds} is not a time; write seconds from 0 to 86400."
    assert capsys.readouterr().err == f"pdx up: {message}\n"


@pytest.mark.machine
def test_api_keys_of_a_cluster_are_not_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["--set", "spec.gateway.auth.secretRef.name=c", "--set", "spec.engine.apiKeySecretRef.name=e"]
    argv = ["up", TINY, "--engine", "sim", "--set", "spec.decode.replicas=0", "--run-dir", str(tmp_path), *keys]
    assert main([*argv, "--port", str(ports.allocate(1)[0])]) == 1
    fields = "spec.gateway.auth and spec.engine.apiKeySecretRef"
    message = f"{fields} each name a Secret of a cluster: this run checks no API keys.\n"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("port", ["0", "-1", "65536", "abc", ""])
def test_a_port_that_does_not_exist(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", TINY, "--engine", "sim", f"--port={port}"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"pdx up: --port: {port} is not a port; write a number from 1 to 65535.\n"


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
    assert (
        "cannot store the run's files: Not a directory; choose another directory with --run-dir."
        in capsys.readouterr().err
    )


def test_tiny_model_keeps_existing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").touch()
    assert main(["tiny-model", str(tmp_path)]) == 2
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
    assert main(["sim", "--role", "both", *flags.split()]) == 2
    assert capsys.readouterr().err == f"pdx: {message}\n"


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        ("upp", "pdx: the command is 'upp'; did you mean up?"),
        ("frobnicate", "pdx: the command is 'frobnicate'; write one of: up, status, top, "),
        ("up FILE --engin sim", "pdx up: --engin does not exist; did you mean --engine?"),
        ("up FILE more", "pdx up: 'more' is one argument too many; --help shows the usage."),
        ("up FILE --engine tgi", "pdx up: --engine is 'tgi'; write one of: vllm, sim."),
        ("up FILE --engine SIM", "pdx up: --engine is 'SIM'; did you mean sim?"),
        ("up FILE --max-engines many", "pdx up: --max-engines is 'many'; write a whole number."),
        ("sim --role both --jitter x", "pdx sim: --jitter is 'x'; write a number."),
        ("up FILE --port", "pdx up: --port needs a value."),
        ("up", "pdx up: FILE is missing; --help shows the usage."),
        (
            "render FILE --namespace Bad_NS",
            "pdx render: --namespace: 'Bad_NS' is not valid; write at most 63 lower-case",
        ),
        ("render FILE --gateway-image=", "pdx render: --gateway-image: '' is not valid; write an image as NAME:TAG"),
        ("up FILE --run-dir=", "pdx up: --run-dir: the value is empty; name a directory."),
        ("status --run-dir=", "pdx status: --run-dir: the value is empty; name a directory."),
        ("top --run-dir=", "pdx top: --run-dir: the value is empty; name a directory."),
        ("doctor --output=", "pdx doctor: --output: the value is empty; name a directory."),
    ],
)
def test_a_usage_error_is_one_sentence(argv: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([TINY if arg == "FILE" else arg for arg in argv.split()])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith(error)
    assert message.count("\n") == 1


def test_too_many_engines_for_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["up", TINY, "--engine", "sim", "--set", "spec.prefill.replicas=1000"]
    assert main([*argv, "--max-engines", "20"]) == 2
    assert "has 1001 engines, and `pdx up` starts at most 20 on this machine; lower spec" in capsys.readouterr().err
    assert default_limit(2) == 16
    assert default_limit(64) == 256


def test_render_prints_the_image_of_the_chart(capsys: pytest.CaptureFixture[str]) -> None:
    chart = EXAMPLES.parent / "charts" / "pdx"
    values, about = (yaml.safe_load((chart / name).read_text()) for name in ("values.yaml", "Chart.yaml"))
    image = values["gateway"]["image"]
    assert main(["render", TINY, "-o", "json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    gateway = next(i for i in items if i["kind"] == "Deployment" and i["metadata"]["name"] == "tiny-gateway")
    (container,) = gateway["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"{image['repository']}:{image.get('tag') or about['appVersion']}"


@pytest.mark.machine
@pytest.mark.parametrize("argv", [["--help"], ["render", TINY], ["render", TINY, "-o", "name"]])
def test_a_full_disk(argv: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "pdx_cli", *argv], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr == "pdx: The output cannot be written: No space left on device.\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_states_the_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], [command]):
        with pytest.raises(SystemExit):
            main([*argv, "--help"])
        assert EXIT_CODES in capsys.readouterr().out


@pytest.mark.parametrize("command", [[], *([name] for name in PLUGIN_COMMANDS)])
def test_the_help_of_the_plugin_refers_to_kubectl(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--help"], prog="kubectl pdx")
    out = capsys.readouterr().out
    examples = [line for line in out[out.index("examples:") :].splitlines() if line.startswith("  ") and "pdx " in line]
    assert examples
    assert all("kubectl" in line for line in examples), examples
    assert "--admin" not in out
    assert "--run-dir" not in out


def test_the_plugin_has_no_local_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", TINY], prog="kubectl pdx")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "kubectl pdx: `up` works on this machine, not in a cluster; run `pdx up`.\n"


@pytest.mark.machine
@pytest.mark.parametrize(
    ("command", "code", "out", "err"),
    [
        ("render FILE >&-", 1, "", "pdx: The output cannot be written: Bad file descriptor.\n"),
        ("status >&-", 1, "", "pdx: The output cannot be written: Bad file descriptor.\n"),
        ("--help >&-", 1, "", "pdx: The output cannot be written: Bad file descriptor.\n"),
        ("render - <&-", 2, "", "pdx: stdin is closed; pipe a YAML file into it, or name a file.\n"),
        ("render nope.yaml 2>&-", 2, "", ""),
        ("render nope.yaml <&- >&- 2>&-", 2, "", ""),
        ("status --run-dir /nonexistent <&- 2>&-", 0, "Nothing runs; start a deployment with `pdx up FILE`.\n", ""),
    ],
)
def test_closed_streams(command: str, code: int, out: str, err: str) -> None:
    program = "import sys; from pdx_cli.entry import pdx; sys.exit(pdx())"
    line = f'"$0" -c "$1" {command.replace("FILE", TINY)}'
    ended = subprocess.run(["sh", "-c", line, sys.executable, program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, out, err)
