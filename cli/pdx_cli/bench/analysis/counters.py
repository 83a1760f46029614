"""Counters of engines and gateways before and after a step, and what has grown between them. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from pdx_api.vllm_metrics import NO_TIME, EngineMetrics, Mean, PromptTokens

_PHASES: Final = re.compile(rb'^pdx_phase_seconds_(sum|count)\{[^}\n]*phase="(\w+)"[^}\n]*\} (\S+)$', re.MULTILINE)
"""See docs/observability.md."""


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Counters of one engine, or of the engines of one role, since their start or between two readings.

    See `EngineMetrics`. All tokens of prompts are computed, external or cached.
    """

    queue: Mean = NO_TIME
    prefill: Mean = NO_TIME
    latency: Mean = NO_TIME
    transfer: Mean = NO_TIME
    transfer_bytes: float = 0.0
    prompt_tokens: float = 0.0
    computed_tokens: float = 0.0
    external_tokens: float = 0.0
    cached_tokens: float = 0.0
    generated_tokens: float = 0.0
    preemptions: float = 0.0
    expired: float = 0.0
    failed_transfers: float = 0.0

    def __add__(self, other: "EngineTotals") -> "EngineTotals":
        return EngineTotals(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: "EngineTotals") -> "EngineTotals":
        return EngineTotals(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    @classmethod
    def of(cls, metrics: EngineMetrics) -> Self:
        """Return the counters of an engine, all data-parallel ranks together. What its metrics do not have is 0."""
        prompts = metrics.prompt_sources or PromptTokens(0.0, 0.0, 0.0)
        values: dict[str, Any] = {
            "computed_tokens": prompts.computed,
            "external_tokens": prompts.external,
            "cached_tokens": prompts.cached,
        }
        others = [each.name for each in fields(cls) if each.name not in values]
        return cls(**values | {name: getattr(metrics, name) or 0.0 for name in others})

    @classmethod
    def sum(cls, each: Iterable[Self]) -> "EngineTotals":
        """Return the sum."""
        found = NOTHING
        for one in each:
            found = found + one
        return found


NOTHING: Final = EngineTotals()


@dataclass(frozen=True, slots=True)
class GatewayTotals:
    """Phases of the gateways' requests. Each is counted only for the requests that had it."""

    phases: Mapping[str, Mean] = field(default_factory=dict)

    def __sub__(self, other: "GatewayTotals") -> "GatewayTotals":
        return GatewayTotals({name: value - other.phases.get(name, NO_TIME) for name, value in self.phases.items()})

    def __add__(self, other: "GatewayTotals") -> "GatewayTotals":
        names = {*self.phases, *other.phases}
        return GatewayTotals({n: self.phases.get(n, NO_TIME) + other.phases.get(n, NO_TIME) for n in names})


def read_gateway(page: bytes) -> GatewayTotals:
    """Read the phases of a gateway."""
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for part, phase, value in _PHASES.findall(page):
        sums[phase.decode(), part.decode()] += float(value)
    phases = {phase for phase, _ in sums}
    return GatewayTotals({phase: Mean(sums[phase, "sum"], sums[phase, "count"]) for phase in phases})


def moved_share(decode: EngineTotals) -> float | None:
    """Return which share of the prompt tokens of D's came through the connector; None without prompts."""
    return decode.external_tokens / decode.prompt_tokens if decode.prompt_tokens else None


def as_numbers(totals: EngineTotals) -> dict[str, float | Mapping[str, float]]:
    """Return the counters for JSON."""
    values = {each.name: getattr(totals, each.name) for each in fields(totals)}
    return {
        name: {"sum": value.total, "count": value.count} if isinstance(value, Mean) else value
        for name, value in values.items()
    }
