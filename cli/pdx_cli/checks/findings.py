"""A finding of `pdx doctor`, and how all of them become one list. What is looked for is in `checks_*.py`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from pdx_cli.sources.picture import Picture


class Severity(StrEnum):
    """What a finding means."""

    WRONG = "wrong"
    """It does not pass by itself."""
    WAIT = "wait"
    """It passes by itself, as far as can be seen."""
    FOLLOWS = "follows"
    """It comes of something else; told behind the causes."""
    NOTE = "note"
    """Worth knowing; nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found."""

    severity: Severity
    cause: str
    """One word in CamelCase: the operator's reason where it has one."""
    sentence: str
    """What is so."""
    remedy: str = ""
    """What to do; empty where the sentence says it."""


Check = Callable[[Picture], Iterable[Finding]]

_ORDER = list(Severity)


def examine(picture: Picture, checks: Sequence[Check]) -> list[Finding]:
    """All findings, the worst first, each cause with one sentence once."""
    found = chain.from_iterable(check(picture) for check in checks)
    return sorted(dict.fromkeys(found), key=lambda finding: _ORDER.index(finding.severity))


def is_healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing is wrong."""
    return all(finding.severity is Severity.NOTE for finding in findings)


def wrong(cause: str, sentence: str, remedy: str = "") -> Finding:
    """A finding of what does not pass by itself."""
    return Finding(Severity.WRONG, cause, sentence, remedy)


def listed(names: Iterable[str]) -> str:
    """Names in a sentence: `a`, `a and b`, `a, b and c`."""
    *most, last = list(dict.fromkeys(names))
    return f"{', '.join(most)} and {last}" if most else last
