"""Whether an engine works on its requests, from its own metrics. Pure.

Rule: requests run, and for `Health.stalled_seconds` neither their number, nor the queue, nor the use of the KV cache,
nor a token counter has changed. vLLM's scheduler reports all of these after every step, so a frozen page means that no
step has ended. A step is short with chunked prefill, which vLLM uses by default: it has at most
`--max-num-batched-tokens` tokens. Nothing in the metrics shows progress within a step. An engine that prefills whole
prompts in one step (`--no-enable-chunked-prefill`) therefore needs a limit longer than its longest prefill.

An engine under pressure may answer everything late, so a missing answer shows something only about an engine without
work.

An engine that is paused holds its requests and answers everything else. Where requests run or wait and no token is
computed for a short time, the gateway therefore asks whether the engine is paused.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from pdx_api.vllm_metrics import EngineMetrics
from pdx_proxy.balancing.load_reports import LoadReport
from pdx_proxy.endpoints.endpoint import Start
from pdx_proxy.endpoints.events import Cause, Suspect
from pdx_proxy.health.reports import Round

_PAUSE_SECONDS: Final = 15.0
"""How long nothing is computed until the engine is asked whether it is paused. A load of KV may take as long."""


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

    @property
    def has_requests(self) -> bool:
        """Whether requests run or wait."""
        return self.running > 0 or self.waiting > 0

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
    computed: float
    """When anything but the queue was seen to change, or the engine had no requests."""

    def may_be_paused(self, now: float) -> bool:
        """Whether requests run or wait, and nothing has been computed for some time, whatever has arrived since."""
        return self.progress.has_requests and now - self.computed >= _PAUSE_SECONDS

    def stalled(self, now: float, limit: float) -> bool:
        """Whether requests have run without progress for `limit` seconds."""
        return self.progress.running > 0 and now - self.since >= limit


def observe(before: Observed | None, progress: Progress, now: float) -> Observed:
    """Return the observation after one more reading of the metrics."""
    if before is None:
        return Observed(progress, now, now)
    if before.progress == progress:
        return before
    computes = replace(before.progress, waiting=progress.waiting) != progress
    return Observed(progress, now, now if computes or not before.progress.has_requests else before.computed)


@dataclass(frozen=True, slots=True)
class Stalls:
    """The endpoints that make no progress."""

    suspects: list[Suspect]
    maybe_paused: list[Start]
    """Others, whose requests run or wait while nothing is computed."""


class StallDetector:
    """Owner of the observed progress of each endpoint."""

    def __init__(self, limit: float) -> None:
        """Let requests run for `limit` seconds without progress; 0: forever."""
        self._limit = limit
        self._observed: dict[Start, Observed] = {}

    def since(self, start: Start) -> float | None:
        """Since when an endpoint's progress is as it is, in seconds of the gateway's clock; None if it is not known."""
        observed = self._observed.get(start)
        return None if observed is None else observed.since

    def update(self, scraped: Round) -> Stalls:
        """Return the endpoints that have stalled, and those that may be paused."""
        warm = scraped.warm
        self._observed = {start: observed for start, observed in self._observed.items() if start in warm}
        stalls = Stalls([], [])
        for report in scraped.latest:
            progress, start = Progress.of(report.metrics), report.endpoint.start
            if progress is None:
                continue
            observed = self._observed[start] = observe(self._observed.get(start), progress, report.at)
            if self._limit and observed.stalled(report.at, self._limit):
                seconds = report.at - observed.since
                reason = f"{progress.running:g} requests run and have made no progress for {seconds:.0f} s"
                stalls.suspects.append(Suspect(*start, reason, Cause.STALLED))
            elif observed.may_be_paused(report.at):
                stalls.maybe_paused.append(start)
        return stalls
