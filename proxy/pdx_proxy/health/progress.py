"""Whether an engine works on its requests, from its own metrics. Pure.

Rule: requests run, and for `Health.stalled_seconds` neither their number, nor the queue, nor the use of the KV cache,
nor a token counter has changed. vLLM's scheduler reports all of these after every step, so a frozen page means that no
step has ended. A step is short with chunked prefill, which vLLM uses by default: it has at most
`--max-num-batched-tokens` tokens. Nothing in the metrics shows progress within a step. An engine that prefills whole
prompts in one step (`--no-enable-chunked-prefill`) therefore needs a limit longer than its longest prefill.

An engine under pressure may answer everything late, so a missing answer shows something only about an engine without
work.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pdx_proxy.balancing.load_reports import LoadReport
from pdx_proxy.engines.engine_metrics import Progress


def has_work(reports: Iterable[LoadReport], legs: int) -> bool:
    """Whether work explains that an engine does not answer: this gateway's legs to it, or requests that it reports.

    `reports` has one report for each of its ranks. The requests in them may come from other gateways.
    """
    return legs > 0 or any(report.running or report.waiting for report in reports)


@dataclass(frozen=True, slots=True)
class Observed:
    """An engine's progress, and since when it has not changed."""

    progress: Progress
    since: float
    """When it was first seen as it is, in seconds of the gateway's clock."""

    def stalled(self, now: float, limit: float) -> bool:
        """Whether requests have run without progress for `limit` seconds."""
        return self.progress.running > 0 and now - self.since >= limit


def observe(before: Observed | None, progress: Progress, now: float) -> Observed:
    """Return the observation after one more reading of the metrics."""
    return Observed(progress, now) if before is None or before.progress != progress else before


@dataclass(frozen=True, slots=True)
class QueueSample:
    """A reading of an engine's queue."""

    waiting: float
    finished: float
    at: float
    """In seconds of the gateway's clock."""


def queue_seconds(before: QueueSample | None, now: QueueSample) -> float:
    """Estimate how long a request that comes now waits for its turn: the queue over the rate at which requests end.

    0 without a queue, or before there is a rate. Infinite if nothing has ended since the last reading.
    """
    if not now.waiting or before is None or now.finished < before.finished or now.at <= before.at:
        return 0.0
    rate = (now.finished - before.finished) / (now.at - before.at)
    return now.waiting / rate if rate else float("inf")
