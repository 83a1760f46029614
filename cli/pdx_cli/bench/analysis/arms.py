"""The arms of a comparison as values, and the plan of the steps of one arm. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pdx_cli.bench.analysis.bottleneck import Bottleneck
from pdx_cli.bench.analysis.counters import NOTHING, EngineTotals
from pdx_cli.bench.analysis.search import GOAL, Search
from pdx_cli.bench.analysis.steps import StepResult
from pdx_cli.bench.statistics import mean


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to use the devices."""

    name: str
    """For the user, for example `aggregated 4` or `P:D 2:2`."""
    split: bool = False
    prefill: int = 0
    decode: int = 0
    aggregated: int = 0
    chunk: int | None = None
    """Tokens in one step at most, of an aggregated arm; None: the object's."""
    interval: int = 0
    """Steps from one with prompts to the next, of an aggregated arm; 0: it has no such flag."""
    above: int = 0
    """Prompts of fewer tokens are not split (`routing.disaggregateAboveTokens`)."""
    yours: bool = False
    """Whether it is the user's object as it is."""

    @property
    def engines(self) -> int:
        """How many it has."""
        return self.prefill + self.decode + self.aggregated

    @property
    def ratio(self) -> str:
        """P:D."""
        return f"{self.prefill}:{self.decode}"


@dataclass(frozen=True, slots=True)
class Sample:
    """What counts of one request when arms are compared. Times in seconds."""

    prompt: int
    ttft: float
    """Infinite if the request failed."""
    tpot: float


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What was measured of one arm."""

    arm: Arm
    goodputs: tuple[float, ...]
    """Requests per second: of the search, then of each repeat. Empty if the arm could not be measured."""
    steps: tuple[StepResult, ...]
    bottleneck: Bottleneck = Bottleneck.UNCLEAR
    prefill: EngineTotals = NOTHING
    """What the P's, or the aggregated engines, counted during all steps."""
    decode: EngineTotals = NOTHING
    samples: tuple[Sample, ...] = ()
    """The requests of `best`."""
    shares_cores: str = ""
    """Why the arm says nothing about splitting; empty if its engines have devices of their own."""
    problem: str = ""
    """Why the result is incomplete; empty if it is whole."""
    timeline: Mapping[str, Sequence[tuple[float, float, float]]] = field(default_factory=dict)
    """Engine -> seconds since the arm began, requests that ran and that waited."""

    @property
    def goodput(self) -> float:
        """Mean of the repeats."""
        return mean(self.goodputs) if self.goodputs else 0.0

    @property
    def spread(self) -> float:
        """Between the least and the greatest of the repeats, in requests per second."""
        return max(self.goodputs) - min(self.goodputs) if self.goodputs else 0.0

    @property
    def is_valid(self) -> bool:
        """Whether it shows something about the server: the generator was not the limit."""
        return bool(self.goodputs) and all(step.is_valid for step in self.steps)

    @property
    def best(self) -> StepResult | None:
        """The step that met the goal at the highest rate of the last repeat that has one."""
        return best_step(self.steps)


def best_step(steps: Sequence[StepResult]) -> StepResult | None:
    """Return the step that was good at the highest rate, in the last repeat that has one."""
    good = [step for step in steps if step.share >= GOAL]
    return max(good, key=lambda step: (step.repeat, step.rate), default=None)


def next_step(search: Search, repeats: int, steps: Sequence[StepResult]) -> tuple[float, int] | None:
    """Return the rate and the repeat of the next step of an arm; None when it has been measured.

    Repeat 0 is the search. An arm that met the goal at no rate is not repeated.
    """
    for repeat, each in enumerate(_searches(search, repeats, steps)):
        rate = each.next_rate([step.measured for step in steps if step.repeat == repeat])
        if rate is not None:
            return rate, repeat
    return None


def goodputs(search: Search, repeats: int, steps: Sequence[StepResult]) -> tuple[float, ...]:
    """Return the goodput of the search and of each repeat that has begun."""
    found = []
    for repeat, each in enumerate(_searches(search, repeats, steps)):
        measured = [step.measured for step in steps if step.repeat == repeat]
        if measured:
            found.append(each.goodput(measured))
    return tuple(found)


def _searches(search: Search, repeats: int, steps: Sequence[StepResult]) -> list[Search]:
    goodput = search.goodput([step.measured for step in steps if step.repeat == 0])
    return [search, *[search.repeat(goodput)] * (repeats - 1)] if goodput > 0 else [search]
