"""Traces of one worker's requests: samples at the head, records nothing but times, and exports at the end.

A request that was not sampled costs one call. If it fails or is slow, the gateway's own spans are exported: its engines
received the client's header unchanged, so they have none. A storm of failures does not become a storm of spans: beyond
the limit of a second they are only counted, and requests that are shed have none.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from pdx_proxy.telemetry.counters import Outcome
from pdx_proxy.telemetry.spans import EndedRequest, Span, SpanBuilder
from pdx_proxy.telemetry.timeline import SettlementRecord, Timeline
from pdx_proxy.telemetry.trace_context import TraceSampler

LATE_PER_SECOND: Final = 20
"""Requests that one gateway exports per second although they were not sampled. Its workers share them, at least 1 each.
"""


class SpanSink(Protocol):
    """Where spans go. `export` never blocks."""

    def export(self, spans: list[Span]) -> None:
        """Take the spans of a request."""

    def report(self) -> dict[str, int]:
        """Return the number of spans so far, by what became of them."""

    async def stop(self) -> None:
        """Export what is left, within a deadline."""


class Tracing:
    """Owner of one worker's traces."""

    def __init__(
        self,
        sampler: TraceSampler,
        sink: SpanSink,
        clock: Callable[[], float],
        unix_time: Callable[[], float],
        workers: int = 1,
    ) -> None:
        self.sampler = sampler
        self.sink = sink
        self.clock = clock
        self._unix_time = unix_time
        self._most = max(1, LATE_PER_SECOND // workers)
        self._second = 0
        self._late = 0
        """Requests of this second that were not sampled and are to be exported."""
        self._limited = 0
        """Those that were not exported because of the limit."""

    def end(
        self, exchange: tuple[str, str, Mapping[str, str]], outcome: Outcome, timeline: Timeline, seconds: float
    ) -> None:
        """Export a request that has just ended after `seconds`. `exchange`: its method, path and headers.

        If it was not sampled, it has failed or was slow.
        """
        method, path, headers = exchange
        now = self.clock()
        trace = timeline.trace
        if trace is None:
            if outcome is Outcome.SHED or not self._may_export(now):
                return
            trace = timeline.trace = self.sampler.late(headers)
        ended = EndedRequest(method, path, outcome, timeline, trace, now - seconds, now)
        timeline.exported = len(timeline.legs)
        self.sink.export(self._builder(now).request(ended))

    def settled(self, path: str, timeline: Timeline, record: SettlementRecord) -> None:
        """A settlement has ended: export it, and its legs, if its request has been exported."""
        trace, first = timeline.trace, timeline.exported
        if first < 0 or trace is None:
            timeline.settlements = [*(timeline.settlements or ()), record]
            return
        timeline.exported = len(timeline.legs)
        ended = EndedRequest("POST", path, Outcome.CLIENT_LEFT, timeline, trace, record.began, record.ended, first)
        builder = self._builder(self.clock())
        self.sink.export([*builder.settlements(ended, (record,)), *builder.legs(ended)])

    def report(self) -> dict[str, int]:
        """Return the number of spans by what became of them. Of a request beyond the limit, one is counted."""
        return {**self.sink.report(), "limited": self._limited}

    def _may_export(self, now: float) -> bool:
        """Whether a request that was not sampled is within the limit of this second."""
        second = int(now)
        if second != self._second:
            self._second, self._late = second, 0
        self._late += 1
        if self._late <= self._most:
            return True
        self._limited += 1
        return False

    def _builder(self, now: float) -> SpanBuilder:
        return SpanBuilder(self._unix_time() - now, self.sampler.new_span)
