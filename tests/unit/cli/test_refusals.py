"""Each command line of refusals.txt is refused with its sentence."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdx_cli.errors import ExitCode
from pdx_cli.local.engines import default_limit
from pdx_cli.main import main

TABLE = Path(__file__).with_name("refusals.txt")
TINY = str(Path(__file__).parents[3] / "examples" / "tiny-cpu.yaml")
INDENT = "    "


def refusals() -> Iterator[tuple[str, str]]:
    """The command lines and their sentences, which may have several lines."""
    command, sentence = "", ""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith(INDENT):
            sentence = f"{sentence} {line.strip()}".lstrip()
        elif not line.startswith("#"):
            if command:
                yield command, sentence
            command, sentence = line, ""
    yield command, sentence


@pytest.mark.parametrize(("command", "sentence"), list(refusals()))
def test_a_command_line_is_refused_with_one_sentence(
    command: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prog = "kubectl pdx" if command.startswith("kubectl ") else "pdx"
    argv = [word.replace("FILE", TINY) for word in shlex.split(command.removeprefix(prog))]
    try:
        code = main(argv, prog=prog)
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == ExitCode.INVALID
    limit = str(default_limit(os.cpu_count()))
    expected = sentence.replace("LIMIT", limit)
    assert capsys.readouterr().err.replace(TINY, "FILE") == f"{expected}\n"
