"""The long runs that neither `make test` nor CI does, and what came of each: `make campaigns` prints campaigns.json.

A campaign writes its own entry when it ends: `begin` and `Run.end`, or `recorded` around its main function.
"""

import ast
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
_FILE: Final = Path("benchmarks", "campaigns.json")
PASSED: Final = "passed"
_CHANGED: Final = "+changes"
"""Follows the commit of a run with files that were not committed."""
_NO_COMMIT: Final = "unknown"
"""Instead of the commit, where there is no repository."""
_SIGNALS: Final = 128
_SHOWN_CHANGES: Final = 3
_LONGEST_OUTCOME: Final = 300


@dataclass(frozen=True, slots=True)
class Campaign:
    """One entry of the list."""

    command: str
    """What a developer types."""
    paths: tuple[str, ...]
    """Files and folders whose change makes the result stale; a `*` stands for any text."""
    commit: str = ""
    """Of the last run; empty if there was none."""
    date: str = ""
    seconds: int | None = None
    """Duration of the last run; None if nobody has noted it."""
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """A campaign that runs."""

    command: str
    root: Path
    commit: str
    began: float

    def end(self, outcome: str, seconds: float | None = None) -> None:
        """Write the entry. The outcome begins with `passed` or `failed: `.

        By default, the duration is the time since `begin`.
        """
        first = outcome.strip().splitlines()[0][:_LONGEST_OUTCOME]
        took = round(time.monotonic() - self.began if seconds is None else seconds)
        day = datetime.now(UTC).date().isoformat()
        result = {"commit": self.commit, "date": day, "seconds": took, "outcome": first}
        entries = _read(self.root)
        path = self.root / _FILE
        _entry(entries, self.command).update(result)
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        scratch.replace(path)


def begin(command: str, root: Path = ROOT) -> Run:
    """Begin a campaign of the list, on the checkout's commit; raises ValueError if the list has no such command."""
    paths = _entry(_read(root), command)["paths"]
    commit = _git(root, "rev-parse", "--short=12", "HEAD") or _NO_COMMIT
    changed = _git(root, "status", "--porcelain", "--", *paths)
    return Run(command, root, f"{commit.strip()}{_CHANGED if changed else ''}", time.monotonic())


def recorded(command: str, main: Callable[[], int], *, whole: bool = True, root: Path = ROOT) -> int:
    """Run a campaign's main function, write its entry, and return its exit code.

    A run that is not `whole`, because options shorten it, leaves the entry as it is. So does one that a signal ends:
    its exit code is above 128.
    """
    if not whole:
        return main()
    run = begin(command, root)
    try:
        code = main()
    except Exception as error:
        run.end(f"failed: {type(error).__name__}: {error}")
        raise
    if code <= _SIGNALS:
        run.end(f"failed: exit code {code}" if code else PASSED)
    return code


def read(root: Path = ROOT) -> list[Campaign]:
    """The list."""
    return [Campaign(**{**entry, "paths": tuple(entry["paths"])}) for entry in _read(root)]


def commands(root: Path = ROOT) -> frozenset[str]:
    """The commands of the list."""
    return frozenset(each.command for each in read(root))


def missing(campaign: Campaign, root: Path = ROOT) -> list[str]:
    """What the entry names and the checkout does not have: paths, a target of make, a module, or a test."""
    lost = [path for path in campaign.paths if not any(root.glob(path))]
    given = shlex.split(campaign.command)
    if given[0] == "make":
        targets = set(re.findall(r"^([a-z0-9-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
        lost += [] if given[1] in targets else [f"make {given[1]}"]
        lost += [part for part in arguments(campaign) if "/" in part and not (root / part.split("=")[-1]).exists()]
        return lost
    name = given[given.index("-m") + 1]
    module = root.joinpath(*name.split("."))
    return lost if module.with_suffix(".py").exists() or (module / "__main__.py").exists() else [*lost, name]


def arguments(campaign: Campaign) -> list[str]:
    """The arguments that the command gives to pytest, in ARGS."""
    given = [word.removeprefix("ARGS=") for word in shlex.split(campaign.command) if word.startswith("ARGS=")]
    return [part for text in given for part in shlex.split(text)]


def staleness(campaign: Campaign, root: Path = ROOT) -> str:
    """Why the last result no longer counts; empty if it does."""
    if not campaign.commit:
        return "no run on record"
    if campaign.commit.endswith(_CHANGED):
        return "run with changes that were not committed"
    changed = _git(root, "diff", "--no-renames", "--name-only", campaign.commit, "--", *campaign.paths)
    if changed is None:
        return "run on a commit that this checkout does not have"
    files = list(islice(_differing(root, campaign.commit, changed.splitlines()), _SHOWN_CHANGES + 1))
    more = " and others" if len(files) > _SHOWN_CHANGES else ""
    return f"changed since: {', '.join(files[:_SHOWN_CHANGES])}{more}" if files else ""


def _differing(root: Path, commit: str, files: Sequence[str]) -> Iterator[str]:
    """Those files of a diff that can change a result: not a module with other comments, docstrings or line breaks."""
    for name in files:
        path = root / name
        if path.suffix == ".py" and path.exists():
            before = _git(root, "show", f"{commit}:{name}")
            if before is not None and _are_alike(before, path.read_text(encoding="utf-8")):
                continue
        yield name


def _are_alike(before: str, after: str) -> bool:
    """Whether two versions of a module do the same; a version that is no Python is like no other one."""
    try:
        return _program(before) == _program(after)
    except SyntaxError:
        return False


def _program(text: str) -> str:
    """What a module does, as text: its syntax tree, without comments, docstrings and layout."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                setattr(node, block, [each for each in statements if not _is_text(each)])
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def table(campaigns: Sequence[Campaign], stale: Mapping[str, str]) -> list[str]:
    """The lines of the table; `stale` has the reasons by command, and they follow the row."""
    head = ("CAMPAIGN", "DATE", "COMMIT", "TOOK", "OUTCOME", "STATE")
    rows = [_row(each, stale[each.command]) for each in campaigns]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(map(str.ljust, head, widths)).rstrip()]
    for each, row in zip(campaigns, rows, strict=True):
        notes = (each.outcome if each.outcome != row[4] else "", stale[each.command])
        lines += ["  ".join(map(str.ljust, row, widths)).rstrip(), *(f"    {note}" for note in notes if note)]
    return lines


def _row(campaign: Campaign, reason: str) -> tuple[str, ...]:
    outcome = re.split("[:,]", campaign.outcome)[0]
    state = "STALE" if reason else "current"
    return campaign.command, campaign.date, campaign.commit, _took(campaign.seconds), outcome, state


def _took(seconds: int | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _read(root: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((root / _FILE).read_text(encoding="utf-8"))
    return entries


def _entry(entries: Sequence[dict[str, Any]], command: str) -> dict[str, Any]:
    for entry in entries:
        if entry["command"] == command:
            return entry
    raise ValueError(f"{_FILE} has no campaign {command!r}; add it, with its paths")


def _git(root: Path, *command: str) -> str | None:
    """What git prints; None if it fails, or is not there."""
    try:
        done = subprocess.run(["git", "-C", root, *command], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def main(argv: Sequence[str]) -> int:
    """Print the table. With `--check`, print what is missing and return 1, or warn of what is stale."""
    if argv not in ([], ["--check"]):
        sys.stderr.write("usage: python -m benchmarks.campaigns [--check]\n")
        return 2
    campaigns = read()
    stale = {each.command: staleness(each) for each in campaigns}
    if not argv:
        sys.stdout.write("\n".join(table(campaigns, stale)) + "\n")
        return 0
    lost = [f"{_FILE}: {each.command}: {what} does not exist" for each in campaigns for what in missing(each)]
    sys.stderr.write("".join(f"{line}\n" for line in lost))
    old = [command for command, reason in stale.items() if reason]
    if old:
        sys.stdout.write(
            f"Warning: {len(old)} of {len(campaigns)} campaigns are stale (make campaigns): {', '.join(old)}\n"
        )
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
