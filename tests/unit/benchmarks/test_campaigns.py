"""The list of campaigns: what is stale, what an entry says after a run, and that every long test has an entry."""

import ast
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.campaigns import ROOT, Campaign, arguments, begin, missing, read, recorded, staleness, table
from tests.soak_entries import Part, belongs, whole

COMMAND = "make long"


def _git(root: Path, *command: str) -> None:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b.invalid", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", root, *settings, *command], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one campaign that has not run, and a file that it depends on."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "Makefile").write_text("long: code\n")
    (tmp_path / "code" / "a.py").write_text("1\n")
    (tmp_path / "other.md").write_text("1\n")
    entries = [{"command": COMMAND, "paths": ["code/*.py"]}]
    (tmp_path / "benchmarks" / "campaigns.json").write_text(json.dumps(entries))
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def _only(root: Path) -> Campaign:
    (found,) = read(root)
    return found


@pytest.mark.machine
def test_a_result_is_stale_once_a_path_of_its_campaign_has_changed(checkout: Path) -> None:
    assert staleness(_only(checkout), checkout) == "no run on record"
    assert recorded(COMMAND, lambda: 0, root=checkout) == 0
    assert staleness(_only(checkout), checkout) == ""
    (checkout / "other.md").write_text("2\n")
    assert staleness(_only(checkout), checkout) == ""
    (checkout / "code" / "a.py").write_text("2\n")
    assert staleness(_only(checkout), checkout) == "changed since: code/a.py"
    recorded(COMMAND, lambda: 0, root=checkout)
    assert staleness(_only(checkout), checkout) == "run with changes that were not committed"
    _git(checkout, "commit", "-qam", "two")
    recorded(COMMAND, lambda: 0, root=checkout)
    assert staleness(_only(checkout), checkout) == ""
    lost = replace(_only(checkout), commit="0123456789ab")
    assert staleness(lost, checkout) == "run on a commit that this checkout does not have"


DOCUMENTED = '"""A module."""\n\n\nclass A:\n    """One."""\n\n    size = 1\n    """In bytes."""\n'


@pytest.mark.parametrize(
    ("before", "after", "stale"),
    [
        (DOCUMENTED, DOCUMENTED.replace("One", "Two").replace("bytes", "kB").replace("A module", "The module"), False),
        (DOCUMENTED, "class A:\n    size = 1  # in bytes\n", False),
        ("f(\n    1,\n)\n", "f(1)\n", False),
        ("if a:\n    b()\nelse:\n    'one'\n    c()\n", "if a:\n    b()\nelse:\n    c()\n", False),
        (DOCUMENTED, DOCUMENTED.replace("size = 1", "size = 2"), True),
        (DOCUMENTED, DOCUMENTED.replace("size", "length"), True),
        ("f('one')\n", "f('two')\n", True),
        ("a = 'one'\n", "a = 'two'\n", True),
        ("def f():\n    return 'one'\n", "def f():\n    'one'\n", True),
        ("2\n", "2\n3\n", True),
        ("2\n", "2 +\n", True),
    ],
)
@pytest.mark.machine
def test_other_comments_and_docstrings_make_no_result_stale(
    checkout: Path, before: str, after: str, stale: bool
) -> None:
    (checkout / "code" / "a.py").write_text(before)
    _git(checkout, "commit", "-qam", "two")
    recorded(COMMAND, lambda: 0, root=checkout)
    (checkout / "code" / "a.py").write_text(after)
    assert staleness(_only(checkout), checkout) == ("changed since: code/a.py" if stale else "")


@pytest.mark.machine
def test_a_file_that_came_went_or_moved_makes_a_result_stale(checkout: Path) -> None:
    recorded(COMMAND, lambda: 0, root=checkout)
    for name in "bcde":
        (checkout / "code" / f"{name}.py").write_text("1\n")
    (checkout / "code" / "a.py").unlink()
    _git(checkout, "add", ".")
    assert staleness(_only(checkout), checkout) == "changed since: code/a.py, code/b.py, code/c.py and others"


@pytest.mark.machine
def test_a_result_from_a_copy_without_a_repository_is_stale(checkout: Path) -> None:
    (checkout / ".git").rename(checkout / "kept")
    recorded(COMMAND, lambda: 0, root=checkout)
    assert _only(checkout).commit == "unknown"
    assert staleness(_only(checkout), checkout) == "run on a commit that this checkout does not have"


@pytest.mark.machine
def test_a_campaign_writes_its_entry_also_when_it_fails(checkout: Path) -> None:
    def broken() -> int:
        raise RuntimeError("no engine\nand more")

    assert recorded(COMMAND, lambda: 3, root=checkout) == 3
    assert _only(checkout).outcome == "failed: exit code 3"
    with pytest.raises(RuntimeError):
        recorded(COMMAND, broken, root=checkout)
    failed = _only(checkout)
    assert failed.outcome == "failed: RuntimeError: no engine"
    assert (len(failed.commit), failed.seconds, len(failed.date)) == (12, 0, len("2026-11-27"))
    assert failed.paths == ("code/*.py",)


@pytest.mark.machine
def test_a_part_of_a_campaign_and_one_that_a_signal_ends_write_nothing(checkout: Path) -> None:
    def stopped() -> int:
        raise KeyboardInterrupt

    assert recorded(COMMAND, lambda: 0, whole=False, root=checkout) == 0
    assert recorded(COMMAND, lambda: 130, root=checkout) == 130
    with pytest.raises(KeyboardInterrupt):
        recorded(COMMAND, stopped, root=checkout)
    assert not _only(checkout).commit
    with pytest.raises(ValueError, match=r"campaigns\.json has no campaign 'make short'; add it"):
        begin("make short", checkout)


@pytest.mark.parametrize(
    ("changed", "lost"),
    [
        ({}, []),
        ({"paths": ("code/*.py", "code/b.py")}, ["code/b.py"]),
        ({"command": "make short"}, ["make short"]),
        ({"command": "make long ARGS='code/a.py -k x'"}, []),
        ({"command": "make long ARGS='code/b.py --ignore=code/c.py'"}, ["code/b.py", "--ignore=code/c.py"]),
        ({"command": "python3 -m code.a --all"}, []),
        ({"command": "python3 -m code.b"}, ["code.b"]),
    ],
)
@pytest.mark.machine
def test_the_check_names_what_an_entry_has_lost(checkout: Path, changed: dict[str, Any], lost: list[str]) -> None:
    assert missing(replace(_only(checkout), **changed), checkout) == lost


def test_the_entries_of_this_checkout_have_their_paths_and_commands() -> None:
    listed = read()
    assert {each.command: lost for each in listed if (lost := missing(each))} == {}
    commands = [each.command for each in listed]
    assert len(set(commands)) == len(commands)
    targets = {word for command in commands for word in command.split()[1:2]}
    assert {"cluster-e2e", "soak", "bench", "goodput", "conformance"} <= targets
    assert any("benchmarks.gpu" in command for command in commands)


def test_the_table_has_the_reasons_below_the_rows() -> None:
    passed = Campaign("make a", ("a",), "0123456789ab", "2026-11-27", 840, "passed, but 1 of 2 tests were skipped")
    failed = replace(passed, command="make bcd", seconds=7, outcome="failed: a step: no node has a free cpu")
    new = Campaign("make e", ("e",))
    assert table(
        [passed, failed, new], {"make a": "", "make bcd": "changed since: a", "make e": "no run on record"}
    ) == [
        "CAMPAIGN  DATE        COMMIT        TOOK    OUTCOME  STATE",
        "make a    2026-11-27  0123456789ab  14 min  passed   current",
        "    passed, but 1 of 2 tests were skipped",
        "make bcd  2026-11-27  0123456789ab  7 s     failed   STALE",
        "    failed: a step: no node has a free cpu",
        "    changed since: a",
        "make e                                               STALE",
        "    no run on record",
    ]


def test_every_long_test_belongs_to_one_campaign(found_tests: dict[str, bool]) -> None:
    listed = read()
    long = [test for test, always in found_tests.items() if not always]
    wrong = {test: owners for test in long if len(owners := [e.command for e in listed if belongs(test, e)]) != 1}
    assert wrong == {}


LOADS = "tests/component/soak/test_loads.py"
TESTS = {f"{LOADS}::test_load[sizes-long]": False, f"{LOADS}::test_load[crowd-long]": False}
SIZES, CROWD = TESTS
ENTRIES = [Campaign(f"make soak ARGS='{LOADS} -k {name}'", ()) for name in ("sizes", "crowd")]
REST = Campaign("make soak ARGS='tests/component --ignore=tests/component/soak'", ())


@pytest.mark.parametrize(
    ("selected", "given", "expected"),
    [
        ([SIZES, CROWD], ["tests"], ENTRIES),
        ([SIZES], [LOADS], ENTRIES[:1]),
        ([SIZES], ["tests/component/"], ENTRIES[:1]),
        ([SIZES], [SIZES], []),
    ],
    ids=["all", "by name", "by folder", "by ID"],
)
def test_only_whole_campaigns_are_written(selected: list[str], given: list[str], expected: list[Campaign]) -> None:
    assert [each for each, _ in whole([*ENTRIES, REST], TESTS, selected, given)] == expected


def _report(test: str, phase: str, outcome: str) -> Any:
    return pytest.TestReport(test, ("", None, ""), {}, outcome, None, phase, duration=2.0)  # type: ignore[arg-type]


@pytest.fixture
def part(checkout: Path) -> Callable[..., Part]:
    """A part of two tests that have reported."""

    def ended(first: str, second: str) -> Part:
        found = Part(begin(COMMAND, checkout), frozenset(TESTS))
        for test, outcome in ((SIZES, first), (CROWD, second)):
            found.note(_report(test, "call", outcome))
            found.note(_report(test, "teardown", "passed"))
        return found

    return ended


@pytest.mark.machine
def test_the_outcome_of_a_soak_names_what_failed_and_counts_what_was_skipped(part: Callable[..., Part]) -> None:
    assert (part("passed", "passed").outcome, part("passed", "passed").seconds) == ("passed", 8.0)
    assert part("failed", "passed").outcome == f"failed: {SIZES}"
    assert part("failed", "failed").outcome == f"failed: {SIZES} and 1 more"
    assert part("skipped", "passed").outcome == "passed, but 1 of 2 tests were skipped"
    assert part("skipped", "skipped").outcome == ""
    stopped = part("passed", "passed")
    stopped.ended.remove(CROWD)
    assert stopped.outcome == ""


def _imported(path: Path) -> set[Path]:
    """The modules of `benchmarks` and `tests` that a module imports, directly or not, and itself."""
    found, left = set(), {path}
    while left:
        each = left.pop()
        found.add(each)
        left |= set(_imports(each)) - found
    return found


def _imports(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("benchmarks.", "tests.")):
            place = Path(*str(node.module).split("."))
            candidates = [place, *(place / alias.name for alias in node.names)]
            yield from (file for each in candidates if (ROOT / (file := each.with_suffix(".py"))).is_file())


RECORDS = {Path("benchmarks/soak/results.py"), Path("benchmarks/campaigns.py")}
"""Write results, and measure nothing."""


SOAK = "benchmarks/soak/"


@pytest.mark.parametrize(
    "campaign",
    [each for each in read() if any(path.startswith(SOAK) for path in each.paths)],
    ids=lambda each: each.command,
)
def test_an_entry_has_the_programs_of_its_soak(campaign: Campaign) -> None:
    programs = {Path(path) for path in campaign.paths if path.startswith(SOAK)}
    if f"{LOADS} -k" in campaign.command:
        name = arguments(campaign)[-1].removesuffix("_kv")
        assert Path(SOAK, f"{name}.py") in programs
    needed = {path for program in programs for path in _imported(program)} - RECORDS
    covered = {file.relative_to(ROOT) for path in campaign.paths for file in _files(path)}
    assert needed - covered == set()


def _files(path: str) -> Iterator[Path]:
    for found in ROOT.glob(path):
        yield from found.rglob("*.py") if found.is_dir() else [found]
