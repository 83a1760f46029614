"""What clients received in the last minutes, and what is normal: the least of the last hour that is typical. Pure.

`pdx doctor` and `pdx top` compare the two where no objective is set, and where no Prometheus keeps a history.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pdx_api.names import Role
from pdx_api.vllm_metrics import NO_TIME, Mean
from pdx_proxy.health.reports import Report
from pdx_proxy.telemetry.counters import BUCKETS, Phase

WINDOW_SECONDS: Final = 120.0
"""Length of the last minutes, and of each part of the last hour."""
WINDOWS: Final = 30
"""Parts of the last hour that are kept."""
_LEAST: Final = 10
"""First tokens, or output tokens, from which on their duration is reported."""
_COUNTS: Final = ("outcomes", "sheds", "notSplit", "retries", "broken")
_WAITS: Final = (Phase.TO_PREFILL, Phase.PREFILL, Phase.HANDOFF)
"""Phases between the queue and the first token."""
_MEASURED: Final = (Phase.FIRST_TOKEN, Phase.QUEUE, *_WAITS)


def quantile(counts: Sequence[int], share: float = 0.5) -> float | None:
    """Return a quantile of a histogram with `BUCKETS`, interpolated in its bucket; None with too few durations."""
    total, below, low = sum(counts), 0, 0.0
    if total < _LEAST:
        return None
    for bound, count in zip(BUCKETS, counts, strict=False):
        if below + count >= share * total:
            return low + (bound - low) * (share * total - below) / max(count, 1)
        low, below = bound, below + count
    return low


def typical(values: Iterable[float | None]) -> float | None:
    """Return the lower quartile: a fault that lasts for most of the hour does not become normal."""
    found = sorted(value for value in values if value is not None)
    return found[(len(found) - 1) // 4] if found else None


@dataclass(frozen=True, slots=True)
class _Totals:
    """Counts since the gateway's start, and since each engine's start."""

    at: float
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    refused: int = 0
    phases: Mapping[str, Sequence[int]] = field(default_factory=dict)
    tokens: Mapping[str, Mean] = field(default_factory=dict)
    """Endpoint -> time between output tokens."""
    starts: Mapping[str, int] = field(default_factory=dict)
    """Endpoint -> how often it was warmed up, but for the ends of pauses."""

    def grown(self, then: "_Totals", name: str) -> dict[str, int]:
        """Return what was counted since `then`, without zeros; counts of a worker that has ended are lost."""
        before = then.counts.get(name, {})
        growth = {key: count - before.get(key, 0) for key, count in self.counts.get(name, {}).items()}
        return {key: count for key, count in growth.items() if count > 0}

    def durations(self, then: "_Totals", phase: Phase) -> list[int]:
        """Return the histogram of the durations since `then`."""
        now = self.phases.get(phase, ())
        before = then.phases.get(phase) or [0] * len(now)
        return [max(0, count - past) for count, past in zip(now, before, strict=True)]

    def token_times(self, then: "_Totals", first: Mapping[str, Mean]) -> dict[str, Mean]:
        """Return the time between output tokens since `then`, or since `first` if an engine was not known then.

        An engine with smaller counts or sums has restarted.
        """
        grown = {}
        for name, mean in self.tokens.items():
            before = then.tokens.get(name) or first.get(name, NO_TIME)
            since = mean - before if mean.count >= before.count and mean.total >= before.total else mean
            if since.count >= _LEAST:
                grown[name] = since
        return grown


@dataclass(frozen=True, slots=True)
class _Speed:
    ttft: float | None
    tpot: float | None


class History:
    """Owner of the totals of the last minutes and of the speeds of the last hour."""

    def __init__(self, at: float, window: float = WINDOW_SECONDS) -> None:
        """`at`: now, in seconds of the gateway's clock. `window`: seconds."""
        self._window = window
        self._recent: deque[_Totals] = deque((_Totals(at),))
        self._speeds: deque[_Speed] = deque(maxlen=WINDOWS)
        self._since = _Totals(at)
        """Where the present part of the hour begins."""
        self._first: dict[str, Mean] = {}
        """Endpoint -> its time between output tokens when it was first seen: it may have served for long before."""

    def update(self, at: float, report: Mapping[str, Any], engines: Sequence[Report] = ()) -> None:
        """Add the sum of the workers' reports (`Counters.report`) and the last reports of the engines."""
        tokens = {
            each.endpoint.name: each.metrics.between_tokens
            if each.metrics.between_tokens.count
            else each.metrics.output_token
            for each in engines
            if each.endpoint.role is not Role.PREFILL
        }
        oldest = self._recent[0].tokens
        gone = {n: mean for n, mean in self._recent[-1].tokens.items() if n not in tokens and oldest.get(n) != mean}
        self._first = {name: self._first.get(name, mean) for name, mean in (gone | tokens).items()}
        endpoints = [each.endpoint for each in engines]
        starts = {**self._recent[-1].starts, **{e.name: e.generation - e.resumes for e in endpoints}}
        self._recent.append(replace(_totals(at, report, gone | tokens), starts=starts))
        while len(self._recent) > 2 and self._recent[1].at <= at - self._window:
            self._recent.popleft()
        if at - self._since.at >= self._window:
            now = self._recent[-1]
            self._speeds.append(_speed(self._since, now, self._first))
            self._since = now

    def as_json(self, at: float, report: Mapping[str, Any]) -> dict[str, Any]:
        """Return JSON values: what has happened until now, and what is normal. Times are in seconds."""
        then = self._recent[0]
        now = _totals(at, report, self._recent[-1].tokens)
        return {
            "seconds": round(at - then.at, 1),
            **{name: now.grown(then, name) for name in _COUNTS},
            "retriesRefused": max(0, now.refused - then.refused),
            "ttft": _described(now.durations(then, Phase.FIRST_TOKEN)),
            "queue": _described(now.durations(then, Phase.QUEUE)),
            "phases": {phase.value: _described(now.durations(then, phase)) for phase in _WAITS},
            "restarts": self._restarts(),
            "tpot": {name: mean.mean for name, mean in now.token_times(then, self._first).items()},
            "normal": {
                "ttft": typical(speed.ttft for speed in self._speeds),
                "tpot": typical(speed.tpot for speed in self._speeds),
            },
        }

    def _restarts(self) -> dict[str, int]:
        """Return how often each engine was warmed up again."""
        first: dict[str, int] = {}
        for totals in self._recent:
            first = {**totals.starts, **first}
        return {name: count - first[name] for name, count in self._recent[-1].starts.items() if count > first[name]}


def _totals(at: float, report: Mapping[str, Any], tokens: Mapping[str, Mean]) -> _Totals:
    phases = {str(name): list(report["phases"][name]["counts"]) for name in _MEASURED}
    return _Totals(
        at, {name: dict(report[name]) for name in _COUNTS}, int(report["retriesRefused"]), phases, dict(tokens)
    )


def _speed(then: _Totals, now: _Totals, first: Mapping[str, Mean]) -> _Speed:
    tokens = sum(now.token_times(then, first).values(), NO_TIME)
    return _Speed(quantile(now.durations(then, Phase.FIRST_TOKEN)), tokens.mean)


def _described(counts: Sequence[int]) -> dict[str, Any]:
    return {"count": sum(counts), "median": quantile(counts), "p90": quantile(counts, 0.9)}
