"""The command line: help, version, and errors before anything starts."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pdx_api.version import pdx_version
from pdx_cli.errors import EXIT_CODES, ExitCode
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
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("pdx 0.")


@pytest.mark.parametrize(
    "command", [["render"], ["bench"], ["bench", "--report"], ["status", "--run-dir"], ["doctor", "--kubeconfig"]]
)
def test_a_path_that_is_too_long(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    more = ["qwen"] if command[-1] == "--kubeconfig" else []
    assert main([*command, "x" * 300, *more]) == 2
    message = capsys.readouterr().err
    assert "too long" in message
    assert "x" * 60 in message
    assert "x" * 120 not in message


def test_a_path_of_few_characters_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """A file system limits the bytes of a name: these are 4 for each character."""
    assert main(["status", "--run-dir", "😀" * 64]) == ExitCode.INVALID
    assert capsys.readouterr().err == f"pdx: {'😀' * 64} is not a usable path: File name too long.\n"


@pytest.mark.machine
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode(encoding: str) -> None:
    """The marks of a report are not in its encoding."""
    command = [sys.executable, "-m", "pdx_cli", "doctor", "--admin", "http://127.0.0.1:1"]
    shown = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}, check=False)
    assert shown.returncode == 1
    assert b"x GatewaySilent" in shown.stdout
    assert b"Traceback" not in shown.stderr


def test_tiny_model_keeps_existing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").touch()
    assert main(["tiny-model", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["tiny-model"], ["doctor", "--bundle"]])
@pytest.mark.parametrize(
    ("directory", "reason"),
    [("x" * 300, "File name too long"), ("file/new", "file is not a directory"), ("locked", "Permission denied")],
)
def test_a_directory_that_cannot_be_created(
    command: list[str],
    directory: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(Path, "iterdir", _refuse)  # root, as which tests may run, reads everything
    assert main([*command, str(tmp_path / directory)]) == ExitCode.INVALID
    message = capsys.readouterr().err
    assert re.fullmatch(rf"pdx: .+ cannot be created: .*{reason}; name another directory\.\n", message)


def _refuse(path: Path) -> None:
    raise PermissionError(13, "Permission denied", str(path))


@pytest.mark.parametrize("command", ["status", "top", "doctor"])
def test_run_directories_that_cannot_be_read(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Path, "iterdir", _refuse)
    assert main([command, "--run-dir", str(tmp_path)]) == ExitCode.INVALID
    message = f"pdx: {tmp_path} cannot be read: Permission denied; choose another directory with --run-dir.\n"
    assert capsys.readouterr().err == message


def test_a_file_as_run_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--run-dir", TINY]) == ExitCode.INVALID
    assert "tiny-cpu.yaml cannot be read: Not a directory; choose another" in capsys.readouterr().err


def test_without_the_extra_a_command_says_which_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def imported(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=missing)

    monkeypatch.setattr("importlib.import_module", imported)
    missing = "aiohttp"
    assert main(["gateway"]) == ExitCode.FAILED
    assert capsys.readouterr().err == "pdx: aiohttp is not installed; run `pip install 'pdx-serving[cli]'` (220 MB).\n"
    missing = "pdx_proxy.gone"
    with pytest.raises(ModuleNotFoundError):
        main(["gateway"])


def test_documents_name_images_of_this_version() -> None:
    """PDX's own, where a tag is written out."""
    root = EXAMPLES.parent
    files = [root / "README.md", *(root / "docs").rglob("*.md"), *EXAMPLES.rglob("*.yaml")]
    tags = {
        tag for file in files for tag in re.findall(r"pdx/(?:gateway|operator|\$image):(\d[\w.]*)", file.read_text())
    }
    chart = yaml.safe_load((root / "charts" / "pdx" / "Chart.yaml").read_text())

    assert tags == {pdx_version()}
    assert {chart["version"], chart["appVersion"]} == {pdx_version()}


def test_render_prints_the_image_of_the_chart(capsys: pytest.CaptureFixture[str]) -> None:
    chart = EXAMPLES.parent / "charts" / "pdx"
    values, about = (yaml.safe_load((chart / name).read_text()) for name in ("values.yaml", "Chart.yaml"))
    image = values["gateway"]["image"]
    assert main(["render", TINY, "-o", "json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    gateway = next(i for i in items if i["kind"] == "Deployment" and i["metadata"]["name"] == "tiny-gateway")
    (container,) = gateway["spec"]["template"]["spec"]["containers"]
    assert (
        container["image"]
        == f"{values['imageRegistry']}/{image['repository']}:{image.get('tag') or about['appVersion']}"
    )


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


@pytest.mark.parametrize("command", ["gateway", "sim"])
def test_the_help_states_how_a_server_ends(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    end = "the exit code is then 0. It is 2 if an address is in use: nothing was started."
    assert end in capsys.readouterr().out


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


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {*PLUGIN_COMMANDS}))
def test_a_command_that_the_plugin_does_not_have(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message holds for every command: `bench` and `completion` work in a cluster, or anywhere."""
    with pytest.raises(SystemExit) as ended:
        main([command, TINY], prog="kubectl pdx")
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"kubectl pdx: The plugin has no command `{command}`; run `pdx {command}`.\n"


@pytest.mark.machine
@pytest.mark.parametrize("argv", [["render", "/nowhere.yaml"], ["render"]])
def test_an_error_that_cannot_be_printed_keeps_its_exit_code(argv: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run([sys.executable, "-P", "-m", "pdx_cli", *argv], stderr=full, check=False)
    assert ended.returncode == ExitCode.INVALID


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
        ("status --run-dir /usr <&- 2>&-", 0, "Nothing runs; start a deployment with `pdx up FILE`.\n", ""),
    ],
)
def test_closed_streams(command: str, code: int, out: str, err: str) -> None:
    program = "import sys; from pdx_cli.entry import pdx; sys.exit(pdx())"
    line = f'"$0" -c "$1" {command.replace("FILE", TINY)}'
    ended = subprocess.run(["sh", "-c", line, sys.executable, program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, out, err)
