"""Whether the queue of a decode engine is too long for a push, from its own metrics. Pure."""

from dataclasses import dataclass

from pdx_api.connectors.families import Push
from pdx_api.names import Role
from pdx_proxy.endpoints.endpoint import Endpoint, Start
from pdx_proxy.health.reports import Report, Round


def push_survives(endpoint: Endpoint, handoff_seconds: float) -> float | None:
    """Return for how many seconds a finished prefill engine keeps KV for a decode engine that queues the request.

    None if the decode engine renews the lease. In pull orders it sends heartbeats from the moment that its scheduler
    has the request (vLLM 0.32 nixl/base_scheduler.py, `on_new_request`). In push orders the prefill engine does not
    recognize the ID in them. See docs/settling.md.
    """
    family = endpoint.family
    if not isinstance(family, Push):
        return None
    return handoff_seconds if family.kept_seconds is None else family.kept_seconds


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


class PushQueues:
    """Owner of the last sample of each queue."""

    def __init__(self, handoff_seconds: float) -> None:
        self._handoff_seconds = handoff_seconds
        self._samples: dict[Start, QueueSample] = {}

    def update(self, scraped: Round) -> list[tuple[Endpoint, bool]]:
        """Return, for each decode engine of a push, whether its queue is longer than a push survives."""
        warm = scraped.warm
        self._samples = {start: sample for start, sample in self._samples.items() if start in warm}
        decode = [report for report in scraped.latest if report.endpoint.role is not Role.PREFILL]
        return [(report.endpoint, long) for report in decode if (long := self._is_long(report)) is not None]

    def _is_long(self, report: Report) -> bool | None:
        survives, start = push_survives(report.endpoint, self._handoff_seconds), report.endpoint.start
        waiting, ended = report.metrics.waiting_by_reason, report.metrics.ended
        if survives is None or waiting is None or ended is None:
            return None
        before, sample = self._samples.get(start), QueueSample(waiting.capacity, ended, report.at)
        self._samples[start] = sample
        return queue_seconds(before, sample) > survives
