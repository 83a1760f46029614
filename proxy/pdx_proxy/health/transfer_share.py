"""The share of prompt tokens that decode engines received over KV transfer in the last half minute. Pure.

It follows from the engines' own counters. The `cached_tokens` of answers cannot show it: they are the tokens that the
prefill engine had cached.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.names import Role
from pdx_api.vllm_metrics import PromptTokens
from pdx_proxy.endpoints.endpoint import Start
from pdx_proxy.health.reports import Round

_SAMPLES: Final = 4
"""Counts that are kept of each decode engine. Together they cover the last half minute."""
_OLDEST_SECONDS: Final = 40.0
"""How long the counts of a decode engine that does not report are kept."""

Counts = deque[tuple[float, PromptTokens]]
"""Counts of one decode engine, each with its time by the gateway's clock."""


def append(counts: Counts | None, at: float, tokens: PromptTokens) -> Counts:
    """Return the counts with one more. Counters that have fallen show that the engine has restarted."""
    last = counts[-1][1] if counts else None
    if counts is None or last is None or tokens.total < last.total or tokens.external < last.external:
        counts = deque(maxlen=_SAMPLES)
    counts.append((at, tokens))
    return counts


@dataclass(slots=True)
class TransferShare:
    """Owner of the counts of the last half minute."""

    _counts: dict[Start, Counts] = field(default_factory=dict)
    _splits: deque[int] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    def update(self, scraped: Round, split: int) -> None:
        """Add the counts of a round, and the number of split requests since the gateway's start.

        A decode engine that does not report keeps its counts for a limited time.
        """
        for report in scraped.latest:
            tokens, start = report.metrics.prompt_sources, report.endpoint.start
            if report.endpoint.role is Role.DECODE and tokens is not None:
                self._counts[start] = append(self._counts.get(start), report.at, tokens)
        oldest = scraped.at - _OLDEST_SECONDS
        starts = {endpoint.start for endpoint in scraped.snapshot.everything}
        self._counts = {s: counts for s, counts in self._counts.items() if s in starts and counts[-1][0] >= oldest}
        self._splits.append(split)

    @property
    def decode(self) -> dict[str, PromptTokens]:
        """The recent tokens of each decode engine, those of transfer probes included; without those with one count."""
        return {name: counts[-1][1] - counts[0][1] for (name, _), counts in self._counts.items() if len(counts) > 1}

    def as_json(self) -> dict[str, Any]:
        """Return JSON values, with the split requests of this gateway in the same time."""
        decode = {
            name: {
                "promptTokens": round(tokens.total),
                "outside": round(tokens.external),
                "computed": round(tokens.computed),
            }
            for name, tokens in self.decode.items()
        }
        return {"split": self._splits[-1] - self._splits[0] if self._splits else 0, "decode": decode}
