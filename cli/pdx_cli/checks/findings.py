"""A finding of `pdx doctor`, and how the findings of all checks become one list."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Final

from pdx_cli.sources.observation import Observation
from pdx_operator.observed import engine_log

MAX_QUOTE: Final = 300
"""Characters of a log line or a reason that a sentence quotes."""


class Severity(StrEnum):
    """How serious a finding is, the most serious first."""

    IMPACT = "impact"
    """What clients notice; printed before its causes."""
    WRONG = "wrong"
    """Somebody must fix it."""
    WAIT = "wait"
    """It is expected to pass by itself."""
    FOLLOWS = "follows"
    """A consequence of other findings; printed after them."""
    NOTE = "note"
    """Information; nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check."""

    severity: Severity
    cause: str
    """One word in CamelCase: the operator's reason if it has one."""
    sentence: str
    """The facts."""
    remedy: str = ""
    """What to do; empty if the sentence contains it."""


Check = Callable[[Observation], Iterable[Finding]]

_ORDER = list(Severity)


def examine(observation: Observation, checks: Sequence[Check]) -> list[Finding]:
    """Return all findings without duplicates, the most serious first."""
    found = chain.from_iterable(check(observation) for check in checks)
    return sorted(dict.fromkeys(found), key=lambda finding: _ORDER.index(finding.severity))


def is_healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing is wrong."""
    return all(finding.severity is Severity.NOTE for finding in findings)


def wrong(cause: str, sentence: str, remedy: str = "") -> Finding:
    """Return a finding that somebody must fix."""
    return Finding(Severity.WRONG, cause, sentence, remedy)


def listed(names: Iterable[str]) -> str:
    """Join names for a sentence: `a`, `a and b`, `a, b and c`."""
    *most, last = list(dict.fromkeys(names))
    return f"{', '.join(most)} and {last}" if most else last


def shortened(text: str, limit: int = MAX_QUOTE) -> str:
    """Return the text as one line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def log_of(source: str, log: str) -> str:
    """Return where the log of a process is, and its last error or line, as a remedy."""
    excerpt = engine_log.read(log)
    line = shortened(excerpt.line)
    place = f"Its log: {source}" if source else "Read its log where you started it"
    return f"{place}\nIts last {'error' if excerpt.is_error else 'line'}: {line}" if line else place


def capitalized(text: str) -> str:
    """Return the text with a capital first letter; the rest is unchanged."""
    return text[:1].upper() + text[1:]
