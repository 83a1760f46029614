"""`make soak` writes the entries of the campaigns that it has run whole (benchmarks/campaigns.json)."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pytest

from benchmarks import campaigns
from benchmarks.campaigns import Campaign, Run

SHORTENS: Final = "SECONDS_EACH"
"""Environment variable that shortens the random faults."""


@dataclass(slots=True)
class Part:
    """A campaign of `make soak` in this run, and what its tests have reported."""

    run: Run
    tests: frozenset[str]
    seconds: float = 0.0
    ended: set[str] = field(default_factory=set)
    failed: dict[str, None] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)

    def note(self, report: pytest.TestReport) -> None:
        """Add the report of one phase of one test."""
        self.seconds += report.duration
        if report.failed:
            self.failed[report.nodeid] = None
        elif report.skipped:
            self.skipped.add(report.nodeid)
        if report.when == "teardown":
            self.ended.add(report.nodeid)

    @property
    def outcome(self) -> str:
        """The outcome; empty if there is none, because not all tests have ended or none has run."""
        if self.ended != self.tests or self.skipped == self.tests:
            return ""
        if self.failed:
            first, *others = self.failed
            return f"failed: {first}{f' and {len(others)} more' if others else ''}"
        left = f", but {len(self.skipped)} of {len(self.tests)} tests were skipped" if self.skipped else ""
        return f"{campaigns.PASSED}{left}"


class SoakEntries:
    """Follows the tests of each campaign that this run has whole."""

    def __init__(self, found: Mapping[str, bool], selected: Sequence[str], given: Sequence[str]) -> None:
        """`found` has all collected tests, and whether `make test` runs them; `given` has the paths of the run."""
        parts = whole(campaigns.read(), found, selected, given)
        self._parts = [Part(campaigns.begin(each.command), tests) for each, tests in parts]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for part in self._parts:
            if report.nodeid in part.tests:
                part.note(report)

    def pytest_sessionfinish(self) -> None:
        for part in self._parts:
            if part.outcome:
                part.run.end(part.outcome, part.seconds)


def register(config: pytest.Config, found: Mapping[str, bool], selected: Sequence[str]) -> None:
    """Write entries at the end of this run, if it is one of `make soak` at full length."""
    if config.option.markexpr == "soak" and not config.option.collectonly and SHORTENS not in os.environ:
        config.pluginmanager.register(SoakEntries(found, selected, config.args))


def whole(
    listed: Iterable[Campaign], found: Mapping[str, bool], selected: Sequence[str], given: Sequence[str]
) -> Iterator[tuple[Campaign, frozenset[str]]]:
    """The campaigns of which all tests are selected, with these tests."""
    for each in listed:
        tests = frozenset(test for test, always in found.items() if not always and belongs(test, each))
        places = [word for word in campaigns.arguments(each) if not word.startswith("-") and "/" in word]
        if tests and tests <= set(selected) and all(_covers(given, place) for place in places):
            yield each, tests


def _covers(given: Sequence[str], place: str) -> bool:
    """Whether pytest, with these paths, collects all tests of the place."""
    return any(f"{place}/".startswith(f"{path.rstrip('/')}/") for path in given)


def belongs(test: str, campaign: Campaign) -> bool:
    """Whether a soak test belongs to a campaign: by the paths, `--ignore` and `-k` in its command."""
    if not campaign.command.startswith("make soak "):
        return False
    given = campaigns.arguments(campaign)
    ignored = [word.removeprefix("--ignore=") for word in given if word.startswith("--ignore=")]
    name = given[given.index("-k") + 1] if "-k" in given else ""
    path, _, function = test.partition("::")
    inside = any(_covers([word], path) for word in given if "/" in word and not word.startswith("-"))
    return inside and not any(_covers([place], path) for place in ignored) and name in function
