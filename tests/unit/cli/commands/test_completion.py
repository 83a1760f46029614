"""`pdx completion`: scripts for three shells, which know every command and flag."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pdx_cli.commands.completion import script
from pdx_cli.main import COMMANDS, parser_of
from pdx_cli.usage import subparsers

PARSER = parser_of((), "pdx", complete=True)[0]
SHELLS = ("bash", "zsh", "fish")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_flag_is_in_the_script(shell: str) -> None:
    text = script(shell, PARSER)
    for name, command in subparsers(PARSER).items():
        assert name in text
        for action in command._actions:
            for option in action.option_strings:
                assert (option if shell != "fish" else f" {option.lstrip('-')} ") in text, (name, option)


@pytest.mark.machine
@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_accepts_its_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
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
