"""The accepted counts: what `accepted.json` contains, and how it may change. Only the last functions read git."""

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.instructions.profile import Function, Profile, is_own, readable

PATH: Final = Path(__file__).with_name("accepted.json")
_LEAST_OWN: Final = 0.002
"""A compiled function is recorded if it and what it calls have this share of the instructions."""
_LEAST_OTHER: Final = 0.005
"""Any other function is recorded if it has this share itself."""
_NUMBERS: Final = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")


@dataclass(frozen=True, slots=True)
class AcceptedCase:
    """The accepted count of a case: of one request, or of one event."""

    digest: str
    """Of what was counted."""
    instructions: int
    system_calls: float
    functions: Mapping[str, Function]
    """The compiled functions of the gateway with the largest shares, what they call included."""
    others: Mapping[str, Function]
    """The other functions with the largest shares of their own."""

    @classmethod
    def of(cls, digest: str, profile: Profile) -> "AcceptedCase":
        """Record a profile."""
        own: dict[str, Function] = {}
        others: dict[str, Function] = {}
        for name, function in profile.functions.items():
            if is_own(name) and function.inclusive >= _LEAST_OWN * profile.instructions:
                own[readable(name)] = _sum(own.get(readable(name), Function(0, 0, 0)), function)
            elif not is_own(name) and function.own >= _LEAST_OTHER * profile.instructions:
                others[name] = _sum(Function(0, 0, 0), function)
        system_calls = round(profile.system_calls, 1)
        return cls(digest, round(profile.instructions), system_calls, _sorted(own), _sorted(others))

    def scaled(self, ratio: float) -> "AcceptedCase":
        """Return the case with a count that is this many times as high."""
        return replace(self, instructions=round(self.instructions * ratio))


def _sum(one: Function, other: Function) -> Function:
    return Function(
        round(one.inclusive + other.inclusive), round(one.own + other.own), round(one.calls + other.calls, 2)
    )


def _sorted(functions: Mapping[str, Function]) -> Mapping[str, Function]:
    return dict(sorted(functions.items()))


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an accepted count."""

    date: str
    case: str
    before: int
    after: int
    why: str
    recounted: bool = False
    """Whether the cost is the same, and only the way to count it has changed: both are counts of one commit."""

    @property
    def ratio(self) -> float:
        """The new count to the old one."""
        return self.after / self.before


@dataclass(frozen=True, slots=True)
class Accepted:
    """The content of the file."""

    counted: str
    """The date of the last change."""
    environment: Mapping[str, str]
    """Where the counts were made. A count of another environment is converted with a ratio that was measured there."""
    polls: int
    """Instructions per second for polls of four engines; not part of any case."""
    cases: Mapping[str, AcceptedCase]
    changes: Sequence[Change] = field(default=())
    """Since the first version of the file; the oldest first."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the file in git."""

    commit: str
    accepted: Accepted


def raised(changes: Iterable[Change], case: str) -> float:
    """Return the sum of all raises of a case, as a share. Cuts do not reduce it."""
    return sum(max(0.0, change.ratio - 1) for change in changes if change.case == case and not change.recounted)


def history_faults(former: Sequence[Accepted], present: Accepted) -> list[str]:
    """Return what is wrong with the present file, compared with its former versions; the oldest comes first.

    The file has every case and every change that it ever had, and for each case, the changes lead from the first count
    to the present one, each with a reason.
    """
    faults = [
        f"The change of {change.case} on {change.date} has no reason."
        for change in present.changes
        if not change.why.strip()
    ]
    lost = {change for version in former for change in version.changes} - set(present.changes)
    faults += [f"The change of {change.case} on {change.date} ({change.why}) is no longer there." for change in lost]
    first: dict[str, int] = {}
    for version in (*former, present):
        for name, case in version.cases.items():
            first.setdefault(name, case.instructions)
    for name, count in first.items():
        steps = [change for change in present.changes if change.case == name]
        ends = [count, *(change.after for change in steps)]
        if name not in present.cases:
            faults.append(f"The case {name} is no longer there.")
        elif [*(change.before for change in steps), present.cases[name].instructions] != ends:
            faults.append(
                f"The entries in `changes` do not lead from the first accepted count of {name}, {count:,}, to the "
                f"present one, {present.cases[name].instructions:,}."
            )
    return faults


def amended(accepted: Accepted, new: Mapping[str, AcceptedCase], today: str, why: str) -> Accepted:
    """Return the file with new counts, each with an entry."""
    changes = [
        Change(today, name, accepted.cases[name].instructions, case.instructions, why)
        for name, case in new.items()
        if name in accepted.cases and accepted.cases[name].instructions != case.instructions
    ]
    return replace(accepted, counted=today, cases={**accepted.cases, **new}, changes=(*accepted.changes, *changes))


def parse(text: str) -> Accepted:
    """Read the file's text."""
    document: dict[str, Any] = json.loads(text)
    cases = {
        name: AcceptedCase(
            case["digest"],
            case["instructions"],
            case["system_calls"],
            *(
                {function: Function(*numbers) for function, numbers in case[kind].items()}
                for kind in ("functions", "others")
            ),
        )
        for name, case in document["cases"].items()
    }
    changes = tuple(Change(**change) for change in document["changes"])
    return Accepted(document["counted"], document["environment"], document["polls"], cases, changes)


def render(accepted: Accepted) -> str:
    """Write the file's text, each function in one line."""
    document = asdict(accepted)
    for case in document["cases"].values():
        for kind in ("functions", "others"):
            case[kind] = {name: list(numbers.values()) for name, numbers in case[kind].items()}
    text = json.dumps(document, indent=1)
    return _NUMBERS.sub(lambda found: "[" + " ".join(found[1].split()) + "]", text) + "\n"


def read(path: Path = PATH) -> Accepted | None:
    """Read the file; None if there is none yet."""
    return parse(path.read_text()) if path.exists() else None


def committed_versions(path: Path = PATH) -> list[Version]:
    """Return the versions of the file in git, the oldest first. Raises GitError without a whole history."""
    if _git(path.parent, "rev-parse", "--is-shallow-repository").strip() != "false":
        raise GitError("the repository is a shallow clone; run: git fetch --unshallow")
    commits = _git(path.parent, "log", "--reverse", "--first-parent", "--format=%H", "--", path.name).split()
    return [Version(commit, parse(_git(path.parent, "show", f"{commit}:./{path.name}"))) for commit in commits]


class GitError(Exception):
    """The history of the accepted counts cannot be read; the text has the reason."""


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GitError(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout
