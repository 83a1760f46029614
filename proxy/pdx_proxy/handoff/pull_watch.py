"""Watches the reads of a worker's pulls: a read over a connection whose packets are lost neither ends nor fails."""

import asyncio
from math import ceil
from typing import Final

from pdx_api.vllm_metrics import EngineMetrics, read_metrics
from pdx_proxy.endpoints.endpoint import Endpoint, Start, names_in, pairing
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.probe import page_of
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.http.upstream.failures import DeadlineExceeded

_POLL_SECONDS: Final = 1.0
_METRICS_SECONDS: Final = 1.0
"""How long D may take to report what its requests wait for."""
_STILL_SECONDS: Final = 3.0
"""If no transfer to D ends for so long while requests wait there, its reads hang. A D that is only busy ends some."""


class PullWatch:
    """Owner of the legs of D's that have shown no output. It interrupts those whose KV does not come.

    A pair may also be suspended because it is slow, and vLLM counts a request as waiting for KV until it runs, also if
    its KV has come. So a leg of a suspended pair is interrupted only if transfers to D had stopped before, or if the
    deadline of a hand-off is over. P's lease ends soon after that: a late read could get other KV.
    """

    __slots__ = ("_checks", "_engines", "_hung", "_legs", "_looks", "_moved", "due")

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self.due = engines.deadlines.kv_due
        """How long after P's end D should have the KV, in seconds."""
        self._legs: dict[Leg, tuple[Endpoint, float]] = {}
        """Each with its P, and with the time at which P finished. The youngest is the last."""
        self._checks: dict[Start, asyncio.Task[None]] = {}
        """Of the D's that are queried now."""
        self._moved: dict[Start, tuple[int, float]] = {}
        """How many transfers to a D had ended, and when this number was first seen."""
        self._hung: set[Leg] = set()
        """Those that waited at a D to which no transfer ended, although requests were still split over their pair."""
        self._looks = False
        """Whether `_look` is due."""

    def add(self, leg: Leg, prefill: Endpoint, finished: float) -> None:
        """D has got this leg, whose KV is at this P. P finished at this time."""
        if not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_later(_POLL_SECONDS, self._look)
        self._legs[leg] = prefill, finished

    def discard(self, leg: Leg) -> None:
        """D has shown output, or the leg has ended."""
        self._legs.pop(leg, None)

    def _look(self) -> None:
        """Query each D that has shown no output of a leg for long."""
        if not self._legs:
            self._looks = False
            self._moved.clear()
            self._hung.clear()
            return
        loop = asyncio.get_running_loop()
        loop.call_later(_POLL_SECONDS, self._look)
        oldest = self._engines.clock() - self.due
        late = {leg.endpoint.start: leg.endpoint for leg, (_, finished) in self._legs.items() if finished <= oldest}
        for start in self._moved.keys() - late.keys():
            del self._moved[start]
        for start, decode in late.items():
            if start not in self._checks:
                self._checks[start] = loop.create_task(self._check(decode))

    async def _check(self, decode: Endpoint) -> None:
        """Judge the late legs if requests at D wait for KV. While none waits, each late leg has its KV."""
        start, oldest = decode.start, self._engines.clock() - self.due
        try:
            page = await page_of(self._engines, decode, "/metrics", _METRICS_SECONDS)
            if not page:
                return
            metrics = read_metrics(page)
            hangs, waiting = self._hangs(start, metrics), metrics.waiting_by_reason
            legs = [leg for leg in self._legs if leg.endpoint.start == start]
            if metrics.waiting == 0 or (waiting is not None and not waiting.deferred and not waiting.capacity):
                for leg in legs:
                    if self._legs[leg][1] <= oldest:
                        self.discard(leg)
            elif waiting is None:
                self._judge(legs, oldest, most=len(legs), queued=0, hangs=False)
            elif waiting.deferred:
                self._judge(legs, oldest, most=ceil(waiting.deferred), queued=ceil(waiting.capacity), hangs=hangs)
        finally:
            del self._checks[start]

    def _hangs(self, start: Start, metrics: EngineMetrics) -> bool:
        """Whether no transfer to a D has ended for long."""
        now, count = self._engines.clock(), int(metrics.transfer.count)
        if not metrics.has_nixl:
            return False
        before = self._moved.get(start)
        if before is None or before[0] != count:
            self._moved[start] = count, now
            return False
        return now - before[1] >= _STILL_SECONDS

    def _judge(self, legs: list[Leg], oldest: float, *, most: int, queued: int, hangs: bool) -> None:
        """Interrupt legs that wait for KV within suspended pairs, and have the pairs of others probed.

        D begins its legs in order: the last ones are queued, those before wait for KV, and the first ones run. So at
        `most` so many are interrupted, the last ones before the queue.
        """
        engines, begun, cut = self._engines, len(legs) - queued, []
        snapshot, overdue = engines.snapshot, engines.clock() - engines.deadlines.handoff_seconds
        suspended = {names_in(pair) for pair in snapshot.suspended - snapshot.watched}
        self._hung.intersection_update(self._legs if hangs else ())
        for place, leg in enumerate(legs):
            prefill, finished = self._legs[leg]
            pair = pairing(prefill, leg.endpoint)
            if place >= begun and finished > overdue:
                continue
            if names_in(pair) in suspended:
                cut.append(leg)
                continue
            if hangs:
                self._hung.add(leg)
            if finished <= (oldest if hangs else overdue):
                engines.observer.slow_handoff(pair)
        for leg in cut[-most:]:
            if leg in self._hung or self._legs[leg][1] <= overdue:
                self.discard(leg)
                leg.interrupt(DeadlineExceeded(leg.endpoint.name, "no KV within a pair that is suspended"))
