"""What the requests of one step show: which are good, and the distributions of their times. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pdx_cli.bench.analysis.search import GOAL, Measured
from pdx_cli.bench.load.records import Record
from pdx_cli.bench.statistics import Summary

_LEAST_BAD = 20
"""Bad requests after which a step may end early."""
_SURELY = 1.3
"""By which factor the bad requests must exceed those that the goal permits, of all that are expected."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objectives of one request, in seconds."""

    ttft: float
    tpot: float

    def is_good(self, record: Record) -> bool:
        """Whether a request ended without an error and within both."""
        return record.failure is None and record.ttft <= self.ttft and record.tpot <= self.tpot

    def __str__(self) -> str:
        return f"TTFT {_shown(self.ttft)}, TPOT {_shown(self.tpot)}"


def _shown(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{1000 * seconds:g} ms"


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step, without its warm-up."""

    rate: float
    """Requests per second that were offered."""
    repeat: int
    """0: the search; from 1: the repeats."""
    seconds: float
    """During which requests were sent that count."""
    count: int
    good: int
    ttft_misses: int
    """Requests that answered, with a longer TTFT."""
    tpot_misses: int
    failures: Mapping[str, int]
    ttft: Summary
    tpot: Summary
    """Of answers with more than one token."""
    itl: Summary
    latency: Summary
    prompt_tokens: int
    """Of requests that did not fail; likewise the next."""
    output_tokens: int
    late_p99: float
    """The generator's own lateness, in seconds."""
    is_valid: bool
    """False if the generator was the limit."""
    stopped: bool = False
    """Whether it ended early, because too many requests were bad already."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Mean seconds of each phase (`analysis.phases`); empty if nothing reports them."""

    @property
    def share(self) -> float:
        """Good requests of all; 0 if none was sent."""
        return self.good / self.count if self.count else 0.0

    @property
    def measured(self) -> Measured:
        """For the search."""
        return Measured(self.rate, self.share)


def counted(records: Sequence[Record]) -> list[Record]:
    """The records that count."""
    return [record for record in records if not record.warm_up]


def step_result(
    records: Sequence[Record], slo: Slo, rate: float, repeat: int, seconds: float, late_p99: float, *, is_valid: bool
) -> StepResult:
    """Summarize one step. `seconds` is without the warm-up."""
    found = counted(records)
    whole = [record for record in found if record.failure is None]
    return StepResult(
        rate=rate,
        repeat=repeat,
        seconds=seconds,
        count=len(found),
        good=sum(map(slo.is_good, found)),
        ttft_misses=sum(record.ttft > slo.ttft for record in whole),
        tpot_misses=sum(record.tpot > slo.tpot for record in whole),
        failures=dict(Counter(str(record.failure) for record in found if record.failure)),
        ttft=Summary.of(record.ttft for record in whole),
        tpot=Summary.of(record.tpot for record in whole if record.output_tokens > 1),
        itl=Summary.of(gap for record in whole for gap in record.gaps),
        latency=Summary.of(record.latency for record in whole),
        prompt_tokens=sum(record.prompt_tokens for record in whole),
        output_tokens=sum(record.output_tokens for record in whole),
        late_p99=late_p99,
        is_valid=is_valid,
    )


def is_certain(records: Sequence[Record], waiting: Sequence[float], slo: Slo, expected: float) -> bool:
    """Whether so many requests are bad that the goal cannot be met.

    `waiting`: seconds that each open request has waited for its first token. `expected`: requests of the whole step.
    """
    bad = sum(not slo.is_good(record) for record in counted(records)) + sum(each > slo.ttft for each in waiting)
    return bad >= _LEAST_BAD and bad > (1 - GOAL) * expected * _SURELY
