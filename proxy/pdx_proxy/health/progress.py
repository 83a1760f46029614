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

from pdx_api.vllm_metrics import EngineMetrics
from pdx_proxy.balancing.load_reports import LoadReport
from pdx_proxy.endpoints.endpoint import Start
from pdx_proxy.endpoints.events import Cause, Suspect
from pdx_proxy.health.reports import Report, Round


def has_work(reports: Iterable[LoadReport], legs: int) -> bool:
    """Whether work explains that an engine does not answer: this gateway's legs to it, or requests that it reports.

    `reports` has one report for each of its ranks. The requests in them may come from other gateways.
    """
    return legs > 0 or any(report.running or report.waiting for report in reports)


@dataclass(frozen=True, slots=True)
class Progress:
    """What shows whether an engine works on its requests."""

    running: float
    """Requests that are being computed. Those that wait for a slot or for KV do not run."""
    waiting: float
    kv_use: float
    prompt_tokens: float
    generated_tokens: float

    @classmethod
    def of(cls, metrics: EngineMetrics) -> "Progress | None":
        """Return the progress that an engine's metrics show; None unless they have all of it.

        While a long prompt is prefilled in chunks, only the use of the KV cache changes from step to step: the tokens
        of a prompt are counted at its end, and a step without an output records no iteration (vLLM 0.32,
        `PrometheusStatLogger.record` and `AsyncLLM._run_output_handler`; measured: docs/gateway/failing-engines.md).
        """
        names = ("running", "waiting", "kv_use", "prompt_tokens", "generated_tokens")
        values = [getattr(metrics, name) for name in names]
        return None if None in values else cls(*values)


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


class StallDetector:
    """Owner of the observed progress of each endpoint."""

    def __init__(self, limit: float) -> None:
        """Let requests run for `limit` seconds without progress; 0: forever."""
        self._limit = limit
        self._observed: dict[Start, Observed] = {}

    def update(self, scraped: Round) -> list[Suspect]:
        """Return the endpoints that have stalled."""
        warm = scraped.warm
        self._observed = {start: observed for start, observed in self._observed.items() if start in warm}
        return [suspect for report in scraped.latest if (suspect := self._suspect(report)) is not None]

    def _suspect(self, report: Report) -> Suspect | None:
        progress, start = Progress.of(report.metrics), report.endpoint.start
        if progress is None or not self._limit:
            return None
        observed = self._observed[start] = observe(self._observed.get(start), progress, report.at)
        if not observed.stalled(report.at, self._limit):
            return None
        seconds = report.at - observed.since
        reason = f"{progress.running:g} requests run and have made no progress for {seconds:.0f} s"
        return Suspect(*start, reason, Cause.STALLED)
