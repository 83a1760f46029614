"""What a run shows: shares of requests within the SLO, times, hits. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.goodput.simulation import Record

GOAL: Final = 0.9
"""The share of requests within the SLO that goodput requires."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objectives of one request, in seconds."""

    ttft: float
    tpot: float

    def __str__(self) -> str:
        return f"TTFT {self.ttft:g} s, TPOT {1000 * self.tpot:g} ms"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run, as numbers."""

    rate: float
    """Requests per second that were offered."""
    share: float
    """Requests within TTFT and TPOT."""
    ttft_share: float
    tpot_share: float
    hit_share: float
    """Prompt tokens that were in the prefix cache of the engine that prefilled."""
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    seconds: float = 0.0
    """CPU time of the simulation."""

    def document(self) -> dict[str, float]:
        """For JSON."""
        return {name: round(value, 5) for name, value in asdict(self).items()}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Outcome":
        """The reverse of `document`."""
        return cls(**document)


def outcome(records: Sequence[Record], rate: float, slo: Slo, seconds: float) -> Outcome:
    """All requests of a run count, from the first to the last."""
    count = len(records)
    ttft_kept = [record.ttft <= slo.ttft for record in records]
    tpot_kept = [record.tpot <= slo.tpot for record in records]
    ttfts, tpots = sorted(record.ttft for record in records), sorted(record.tpot for record in records)
    prompts = sum(record.request.prompt for record in records)
    return Outcome(
        rate=rate,
        share=sum(a and b for a, b in zip(ttft_kept, tpot_kept, strict=True)) / count,
        ttft_share=sum(ttft_kept) / count,
        tpot_share=sum(tpot_kept) / count,
        hit_share=sum(record.cached for record in records) / prompts,
        ttft_p50=quantile(ttfts, 0.5),
        ttft_p99=quantile(ttfts, 0.99),
        tpot_p50=quantile(tpots, 0.5),
        tpot_p99=quantile(tpots, 0.99),
        seconds=seconds,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of the sorted values is."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
