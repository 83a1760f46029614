"""`pdx completion`: scripts for three shells, which know every command and flag."""

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from pdx_cli.commands.completion import script
from pdx_cli.main import COMMANDS, parser_of

PARSER = parser_of((), "pdx", complete=True)[0]
SHELLS = ("bash", "zsh", "fish")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_flag_is_in_the_script(shell: str) -> None:
    text = script(shell, PARSER)
    for name, command in PARSER.commands.items():
        assert name in text
        for action in command.actions:
            for option in action.option_strings:
                assert (option if shell != "fish" else f" {option.lstrip('-')} ") in text, (name, option)


@pytest.mark.machine
@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_accepts_its_script(shell: str, tmp_path: Path) -> None:
    _require(shell)
    file = tmp_path / "pdx"
    file.write_text(script(shell, PARSER))
    subprocess.run([shell, "-n", str(file)], check=True)


@pytest.mark.machine
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("pdx u", {"up"}),
        ("pdx ", {*COMMANDS, "--help", "--version"}),
        ("pdx up --eng", {"--engine"}),
        ("pdx up --engine ", {"vllm", "sim"}),
        ("pdx up --engine =", {"vllm", "sim"}),
        ("pdx up --engine = s", {"sim"}),
        ("pdx doctor -o ", {"text", "json", "yaml"}),
        ("pdx status -o n", {"name"}),
        ("pdx completion z", {"zsh"}),
        ("pdx render tin", {"tiny-cpu.yaml"}),
    ],
)
def test_bash_completes(typed: str, completed: set[str], tmp_path: Path) -> None:
    (tmp_path / "tiny-cpu.yaml").touch()
    (tmp_path / "script").write_text(script("bash", PARSER))
    parts = [f"'{part}'" for part in typed.split(" ")]
    state = f"COMP_WORDS=({' '.join(parts)}); COMP_CWORD={len(parts) - 1}"
    code = f"source ./script; {state}; _pdx; printf '%s\\n' ${{COMPREPLY[@]}}"
    ended = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(ended.stdout.split()) == completed


@pytest.mark.machine
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("pdx u", {"up"}),
        ("pdx up --engin", {"--engine"}),
        ("pdx up --engine ", {"vllm", "sim"}),
        ("pdx doctor -o ", {"text", "json", "yaml"}),
        ("pdx completion z", {"zsh"}),
        ("pdx render tin", {"tiny-cpu.yaml"}),
    ],
)
def test_fish_completes(typed: str, completed: set[str], tmp_path: Path) -> None:
    _require("fish")
    (tmp_path / "tiny-cpu.yaml").touch()
    (tmp_path / "script").write_text(script("fish", PARSER))
    code = f"source script; complete -C '{typed}'"
    ended = subprocess.run(
        ["fish", "--no-config", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert {line.partition("\t")[0] for line in ended.stdout.splitlines()} == completed


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
def test_zsh_completes(typed: str, line: str, tmp_path: Path) -> None:
    """In a terminal, with the script where zsh looks for functions."""
    _require("zsh")
    (tmp_path / "tiny-cpu.yaml").touch()
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "_pdx").write_text(script("zsh", PARSER))
    (tmp_path / ".zshrc").write_text(
        "fpath=($PWD/functions $fpath); autoload -U compinit; compinit -D -u\n"
        "show() { print -r -- \"$BUFFER|\" > shown; exit }; zle -N show; bindkey '^X' show\n"
    )
    terminal, shells = pty.openpty()
    os.write(terminal, f"{typed}\t\x18".encode())
    environment = {"PATH": os.environ["PATH"], "TERM": "vt100", "ZDOTDIR": str(tmp_path)}
    try:
        with subprocess.Popen(
            ["zsh", "-d", "-i"], cwd=tmp_path, env=environment, stdin=shells, stdout=shells, stderr=shells
        ) as shell:
            shell.wait(20)
    finally:
        os.close(terminal)
        os.close(shells)
    assert (tmp_path / "shown").read_text() == f"{line}|\n"


def _require(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
