"""Watches the reads of a worker's pulls: a read over a connection whose packets are lost neither ends nor fails."""

import asyncio
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
    its KV has come. So a leg of a suspended pair is interrupted only if no transfer to D ends, or if the deadline of a
    hand-off is over. P's lease ends soon after that: a late read could get other KV.
    """

    __slots__ = ("_checks", "_engines", "_legs", "_looks", "_moved", "due")

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
        """If requests at D wait for KV, interrupt the late legs of suspended pairs, and have the others' pairs probed.

        D's metrics do not show which request waits. While none does, each late leg has its KV.
        """
        start, oldest = decode.start, self._engines.clock() - self.due
        try:
            page = await page_of(self._engines, decode, "/metrics", _METRICS_SECONDS)
            if not page:
                return
            late = [
                leg for leg, (_, finished) in self._legs.items() if leg.endpoint.start == start and finished <= oldest
            ]
            metrics = read_metrics(page)
            hangs, waiting = self._hangs(start, metrics), metrics.waiting_by_reason
            if waiting is None:
                self._judge(late, hangs=hangs)
            elif waiting.deferred:
                self._judge(late[-int(waiting.deferred) :], hangs=hangs)  # an older one has more probably got its KV
            elif not waiting.capacity:
                for leg in late:
                    self.discard(leg)
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

    def _judge(self, late: list[Leg], *, hangs: bool) -> None:
        engines = self._engines
        snapshot, asked, overdue = engines.snapshot, set(), engines.clock() - engines.deadlines.handoff_seconds
        suspended = {names_in(pair) for pair in snapshot.suspended - snapshot.watched}
        for leg in late:
            prefill, finished = self._legs[leg]
            pair = pairing(prefill, leg.endpoint)
            if names_in(pair) in suspended:
                if hangs or finished <= overdue:
                    self.discard(leg)
                    leg.interrupt(DeadlineExceeded(leg.endpoint.name, "no KV within a pair that is suspended"))
            elif pair not in asked:
                asked.add(pair)
                engines.observer.slow_handoff(pair)
