"""`pdx completion`: what bash, zsh and fish complete with its scripts."""

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pdx_cli.commands.completion import _SHELLS
from pdx_cli.main import COMMANDS, main
from pdx_cli.runs.run_record import Run, RunDirectory

LINES = [
    ("pdx u", {"up"}),
    ("pdx ", set(COMMANDS)),
    ("pdx up --engin", {"--engine"}),
    ("pdx up --engine ", {"vllm", "sim"}),
    ("pdx doctor -o ", {"text", "json", "yaml"}),
    ("pdx completion z", {"zsh"}),
    ("pdx render tin", {"tiny-cpu.yaml"}),
    ("pdx bench tin", {"tiny-cpu.yaml"}),
    ("pdx doctor ", {"qwen"}),
    ("pdx top t", set()),
    ("pdx status ", set()),
]
"""What was typed, and what completes it."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with `pdx` for PATH, the script of each shell, and a file."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "pdx"
    program.write_text(f"#!{sys.executable}\nfrom pdx_cli.entry import pdx\nraise SystemExit(pdx())\n")
    program.chmod(0o755)
    (tmp_path / "tiny-cpu.yaml").touch()
    run = Run("qwen", os.getpid(), 0.0, "Aggregated", None, None, "sim", "m", "http://h:1", "http://h:2", ())
    (tmp_path / "pdx" / "qwen").mkdir(parents=True)
    RunDirectory(tmp_path / "pdx" / "qwen").write(run)
    return tmp_path


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def environment(place: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(place),
        **more,
    }


def printed(place: Path, *command: str) -> str:
    return subprocess.run(
        command, cwd=place, env=environment(place), capture_output=True, text=True, check=True, timeout=60
    ).stdout


def shown(place: Path, typed: str, keys: bytes, *shell: str, **more: str) -> str:
    """Return what a shell in a terminal has on its line after some keys: it writes that to a file and ends."""
    terminal, shells = pty.openpty()
    os.write(terminal, typed.encode() + keys)
    try:
        with subprocess.Popen(
            shell,
            cwd=place,
            env=environment(place, TERM="vt100", **more),
            stdin=shells,
            stdout=shells,
            stderr=shells,
        ) as process:
            process.wait(60)
    finally:
        os.close(terminal)
        os.close(shells)
    return (place / "shown").read_text()


@pytest.mark.machine
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        *LINES,
        ("pdx up --engine=s", {"sim"}),
        ("pdx --", {"--help", "--version"}),
        ("pdx status -o n", {"name"}),
        ("pdx up tiny-cpu.yaml --engine ", {"vllm", "sim"}),
    ],
)
def test_bash_completes(typed: str, completed: set[str], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "script").write_text(script("bash", capsys))
    state = f"COMP_LINE='{typed}'; COMP_POINT={len(typed)}; COMP_TYPE=9"
    code = f"source ./script; {state}; _python_argcomplete pdx; printf '%s\\n' ${{COMPREPLY[@]}}"
    assert set(printed(place, "bash", "-c", code).split()) == completed


@pytest.mark.machine
@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("pdx stat", "pdx status "),
        ("pdx render tin", "pdx render tiny-cpu.yaml "),
        ("pdx doctor tin", "pdx doctor tin"),
        ("pdx status tin", "pdx status tin"),
        ("pdx completion bash tin", "pdx completion bash tin"),
    ],
)
def test_bash_completes_no_files_where_nothing_fits(
    typed: str, line: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a terminal, where bash itself may add files."""
    (place / "rc").write_text(
        f"{script('bash', capsys)}\nshow() {{ printf '%s|\\n' \"$READLINE_LINE\" > shown; exit; }}\n"
        "bind -x '\"\\C-t\": show'\n"
    )
    assert shown(place, typed, b"\t\x14", "bash", "--noprofile", "--rcfile", "rc", "-i") == f"{line}|\n"


@pytest.mark.machine
@pytest.mark.parametrize(("typed", "completed"), LINES)
def test_fish_completes(typed: str, completed: set[str], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _require("fish")
    (place / "script").write_text(script("fish", capsys))
    lines = printed(place, "fish", "--no-config", "-c", f"source script; complete -C '{typed}'").splitlines()
    assert {line.partition("\t")[0] for line in lines} == completed


@pytest.mark.machine
@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("pdx stat", "pdx status "),
        ("pdx up --engin", "pdx up --engine "),
        ("pdx up --engine v", "pdx up --engine vllm "),
        ("pdx completion z", "pdx completion zsh "),
        ("pdx render tin", "pdx render tiny-cpu.yaml "),
    ],
)
def test_zsh_completes(typed: str, line: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a terminal, with the script where zsh looks for functions."""
    _require("zsh")
    (place / "functions").mkdir()
    (place / "functions" / "_pdx").write_text(script("zsh", capsys))
    (place / ".zshrc").write_text(
        "fpath=($PWD/functions $fpath); autoload -U compinit; compinit -D -u\n"
        "show() { print -r -- \"$BUFFER|\" > shown; exit }; zle -N show; bindkey '^X' show\n"
    )
    assert shown(place, typed, b"\t\x18", "zsh", "-d", "-i", ZDOTDIR=str(place)) == f"{line}|\n"


@pytest.mark.machine
def test_a_completion_imports_only_its_command() -> None:
    code = (
        "import os, sys\n"
        "from pdx_cli.main import main\n"
        "os.environ |= {'_ARGCOMPLETE': '1', 'COMP_LINE': 'pdx top --s', 'COMP_POINT': '11'}\n"
        "import argcomplete\n"
        "argcomplete.autocomplete = lambda parser, **_: (print(*sys.modules), sys.exit())\n"
        "main([])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(ran.stdout.split())
    assert "pdx_cli.commands.top" in modules
    assert not modules & {"aiohttp", "asyncio", "kubernetes", "pydantic", "rich", "pdx_cli.commands.doctor"}


@pytest.mark.parametrize("given", [(), ("COMP_LINE",), ("COMP_POINT",)])
def test_a_command_runs_where_no_shell_completes_it(
    given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The variable may be left over in the environment."""
    for name in ("COMP_LINE", "COMP_POINT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("_ARGCOMPLETE", *given):
        monkeypatch.setenv(name, "1")
    assert main(["version"]) == 0
    assert capsys.readouterr().out


def test_every_shell_has_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in _SHELLS:
        assert "_ARGCOMPLETE" in script(shell, capsys)


def _require(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
