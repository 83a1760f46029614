"""Programs print their usage, and docs/reference-cli.md has every flag of every program, on any machine."""

import argparse
import runpy
import sys
from pathlib import Path

import pytest

from pdx_cli.main import COMMANDS
from scripts.command_line import command_line, section

pytestmark = pytest.mark.machine  # a library of the parsers opens a socket at import

PROGRAMS = (
    *(("pdx_operator",), ("pdx_proxy",), ("pdx_cluster",)),
    *(("pdx_cluster", command) for command in ("up", "down", "status", "env", "load", "build")),
    *(("benchmarks.gateway",), ("benchmarks.operator",), ("images.build",), ("scripts.generate",)),
    *(("tests.cluster.tiny",), ("tests.conformance",), ("tests.dashboards.show",)),
)
"""Every program but `pdx`, and its command, as `python -m` takes them."""


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_a_program_prints_its_usage(
    program: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*program, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    assert not ended.value.code
    assert "usage:" in capsys.readouterr().out


def test_every_program_and_the_flags_of_all_kinds() -> None:
    page = command_line()
    titles = [line.strip("# `") for line in page.splitlines() if line.startswith("## ")]
    assert titles == [*(f"pdx {name}" for name in COMMANDS), "python -m pdx_proxy", "python -m pdx_operator"]
    for flag in (
        "--engine {vllm,sim}",
        "--drain-seconds S",
        "--lease-seconds LEASE_SECONDS",
        "-o {text,json,yaml,name}",
    ):
        assert f"`{flag}`" in page


def test_it_is_the_same_on_every_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = command_line()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("os.cpu_count", lambda: 999)
    assert command_line() == page
    assert str(Path.home()) not in page


def test_what_markdown_would_take_for_itself_is_escaped() -> None:
    parser = argparse.ArgumentParser(prog="x", description="d", add_help=False)
    parser.add_argument("--a", help="one|two, <name>, 5%%, %(prog)s", metavar="A")
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    assert (
        section("x", parser)
        == "## `x`\nd\n\n| flags | meaning |\n|---|---|\n| `--a A` | one\\|two, &lt;name>, 5%, x |\n\n"
    )
