"""Watches the reads of a worker's pulls: a read over a connection whose packets are lost neither ends nor fails."""

import asyncio
from collections.abc import Iterable
from typing import Final

from pdx_api.vllm_metrics import read_waiting
from pdx_proxy.endpoints.endpoint import Endpoint, Start, pairing
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.probe import page_of
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.http.upstream.failures import DeadlineExceeded

_POLL_SECONDS: Final = 1.0
_METRICS_SECONDS: Final = 1.0
"""How long D may take to report what its requests wait for."""


class PullWatch:
    """Owner of the legs of D's that have shown no output. It interrupts those whose KV does not come.

    Such a leg may wait in D's queue: only D's metrics show that requests wait for KV, and only a transfer probe shows
    that KV does not move within their pair. P's lease ends meanwhile, so that a late read could get other KV.
    """

    __slots__ = ("_after", "_checks", "_engines", "_legs", "_looks")

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._after = engines.deadlines.kv_due
        """The age at which a leg's KV should have come."""
        self._legs: dict[Leg, tuple[Endpoint, float]] = {}
        """Each with its P, and with the time at which P had finished."""
        self._checks: dict[Start, asyncio.Task[None]] = {}
        """Of the D's that are queried now."""
        self._looks = False
        """Whether `_look` is due."""

    def add(self, leg: Leg, prefill: Endpoint, finished: float) -> None:
        """D gets this leg. The P finished at this time."""
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
            return
        loop = asyncio.get_running_loop()
        loop.call_later(_POLL_SECONDS, self._look)
        oldest = self._engines.clock() - self._after
        late = {leg.endpoint.start: leg.endpoint for leg, (_, finished) in self._legs.items() if finished <= oldest}
        for start, decode in late.items():
            if start not in self._checks:
                self._checks[start] = loop.create_task(self._check(decode))

    async def _check(self, decode: Endpoint) -> None:
        """If requests at D wait for KV, interrupt the late legs of suspended pairs, and have the others' pairs probed.

        D's metrics do not show which request waits. While none does, each late leg has its KV.
        """
        engines, start = self._engines, decode.start
        try:
            oldest = engines.clock() - self._after
            page = await page_of(engines, decode, "/metrics", _METRICS_SECONDS)
            late = [
                (leg, prefill)
                for leg, (prefill, finished) in self._legs.items()
                if leg.endpoint.start == start and finished <= oldest
            ]
            waiting = read_waiting(page)
            if waiting is None or waiting.deferred:
                self._judge(late if page else ())
            elif not waiting.capacity:
                for leg, _ in late:
                    self.discard(leg)
        finally:
            del self._checks[start]

    def _judge(self, late: Iterable[tuple[Leg, Endpoint]]) -> None:
        snapshot, asked = self._engines.snapshot, set()
        for leg, prefill in late:
            pair = pairing(prefill, leg.endpoint)
            if pair in snapshot.suspended and pair not in snapshot.watched:
                self.discard(leg)
                leg.interrupt(DeadlineExceeded(leg.endpoint.name, "no KV within a pair that is suspended"))
            elif pair not in asked:
                asked.add(pair)
                self._engines.observer.slow_handoff(pair)
