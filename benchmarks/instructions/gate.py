"""Decides whether counts are too high, and names the functions that grew. Pure."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.instructions.accepted import Accepted, AcceptedCase, Change, raised
from benchmarks.instructions.profile import Function, Profile

MOST_RISE: Final = 0.02
"""How much higher than the accepted count a count may be, at least."""
_SPREADS: Final = 3.0
"""A count may be higher by this many times the measured spread."""
MOST_SPREAD: Final = 0.02
"""With a larger spread, everything is counted once more."""
MOST_RAISED: Final = 0.05
"""The sum of all raises of an accepted count since its first version."""
_LEAST_GROWTH: Final = 0.003
"""A function has grown if it has this share of the request's instructions more."""
_SHOWN: Final = 15


@dataclass(frozen=True, slots=True)
class Counted:
    """The runs of a case."""

    digest: str
    """Of what was counted."""
    profiles: Sequence[Profile]
    waited: float
    """The smallest share of requests that waited in the queue."""

    @property
    def median(self) -> Profile:
        """Return the run with the median count."""
        ordered = sorted(self.profiles, key=lambda profile: profile.instructions)
        return ordered[(len(ordered) - 1) // 2]

    @property
    def case(self) -> AcceptedCase:
        """Return the median run as it is recorded."""
        return AcceptedCase.of(self.digest, self.median)

    @property
    def spread(self) -> float:
        """Return the largest count minus the smallest, as a share of the median."""
        counts = [profile.instructions for profile in self.profiles]
        return (max(counts) - min(counts)) / statistics.median(counts)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one case."""

    case: str
    before: AcceptedCase
    after: AcceptedCase
    spread: float
    """The larger of the two, if both were measured."""

    @property
    def rise(self) -> float:
        """Return how much higher the count is, as a share."""
        return self.after.instructions / self.before.instructions - 1

    @property
    def most(self) -> float:
        """Return how much higher it may be."""
        return max(MOST_RISE, _SPREADS * self.spread)

    @property
    def passes(self) -> bool:
        """Whether the count is low enough."""
        return self.rise <= self.most

    @property
    def differs(self) -> bool:
        """Whether the count has changed by more than the runs of one code differ."""
        return abs(self.rise) > max(self.spread, _LEAST_GROWTH)


def compare(
    before: Mapping[str, AcceptedCase], after: Mapping[str, Counted], spreads: Mapping[str, float]
) -> list[Verdict]:
    """Compare every case that both have. `spreads`: of `before`, if it was measured in the same run."""
    return [
        Verdict(name, before[name], counted.case, max(counted.spread, spreads.get(name, 0.0)))
        for name, counted in after.items()
        if name in before and before[name].digest == counted.digest
    ]


def case_faults(before: Mapping[str, AcceptedCase], digests: Mapping[str, str]) -> list[str]:
    """Return one sentence for each case that is new, gone, or no longer sends what was counted."""
    faults = [f"The case {name} has no accepted count." for name in digests.keys() - before.keys()]
    faults += [
        f"The case {name} exists no longer, but has an accepted count." for name in before.keys() - digests.keys()
    ]
    changed = [name for name, digest in digests.items() if name in before and before[name].digest != digest]
    return [*faults, *(f"The case {name} is no longer the one that was counted." for name in changed)]


def expected(base: Mapping[str, AcceptedCase], changes: Iterable[Change]) -> dict[str, AcceptedCase]:
    """Return the counts that are accepted in this environment: those of a base, with the changes that came after it.

    The base is counted here as cases are counted now.
    """
    found = dict(base)
    for change in changes:
        if change.case in found and not change.recounted:
            found[change.case] = found[change.case].scaled(change.ratio)
    return found


def raise_faults(accepted: Accepted) -> list[str]:
    """Return one sentence for each case whose raises exceed 5 % in total."""
    sums = {name: raised(accepted.changes, name) for name in accepted.cases}
    return [
        f"The raises of {name} are {total:.1%} in total; at most {MOST_RAISED:.0%} are allowed, and cuts do not count."
        for name, total in sums.items()
        if total > MOST_RAISED
    ]


def growth(verdict: Verdict) -> list[str]:
    """Return one line for each function that grew, the largest growth first.

    A function of the gateway counts with all that it calls, another one with its own instructions.
    """
    before, after = verdict.before, verdict.after
    grown = [
        *_grown(before.functions, after.functions, lambda function: function.inclusive),
        *_grown(before.others, after.others, lambda function: function.own),
    ]
    grown.sort(key=lambda each: each[0], reverse=True)
    least = _LEAST_GROWTH * before.instructions
    large = [line for more, line in grown if more >= least]
    return (large or [line for _, line in grown])[:_SHOWN]


def _grown(
    before: Mapping[str, Function], after: Mapping[str, Function], count: Callable[[Function], float]
) -> Iterator[tuple[float, str]]:
    for name, new in after.items():
        old = before.get(name)
        more = count(new) - (count(old) if old is not None else 0.0)
        if old is None:
            yield more, f"{name}: {count(new):,.0f} instructions, {new.calls:g} calls; too small to be recorded before"
        elif more > 0:
            counts, calls = f"{count(old):,.0f} -> {count(new):,.0f}", f"{old.calls:g} -> {new.calls:g} calls"
            yield more, f"{name}: {more:+,.0f} instructions ({counts}), {calls}"
