"""How many requests an engine gets at a time, from what it reports about itself. Pure.

vLLM 0.32 does not publish max_num_seqs (v1/metrics/loggers.py), and where the KV cache is smaller, that is not the
limit. Where an annotation or a flag names it, an engine gets as many requests as this and its KV cache allow, until a
queue shows that it runs fewer. Otherwise the limit follows what the engine runs: while nothing waits in its queue, it
gets twice what it runs; when requests wait, it runs all that it can. An engine that answers within `QUICK_SECONDS` runs
few requests at any moment, so it also gets as many as it ends in that time.
"""

from dataclasses import dataclass
from enum import Enum, auto
from math import exp, floor
from typing import Final

from pdx_api.vllm_metrics import EngineMetrics

FIRST_LIMIT: Final = 4.0
"""Requests for an engine before its first report: as many may wait, so two gateways may begin with as many each."""
UNREPORTED_LIMIT: Final = 256.0
"""Requests for an engine that reports nothing: vLLM's max_num_seqs on most GPUs (engine/arg_utils.py)."""
MOST_QUEUED: Final = 4.0
"""A D may have so many requests in its queue, or a tenth of what it runs."""
QUEUED_SHARE: Final = 0.1
_RESERVE: Final = 2.0
"""Requests that wait in a D that runs all it can, so that a sequence that ends is replaced without the gateway."""
_RESERVE_SHARE: Final = 0.05
_SENDING_SECONDS: Final = 0.2
"""A gateway with waiting requests needs less than this to send the next one."""
_SCARCE_KV: Final = 0.5
"""From this use of the KV cache on, it bounds the limit."""
_KEPT_SHARE: Final = 0.7
"""Weight of the earlier values in an average."""
_RATE_SECONDS: Final = 5.0
"""Within this time, the weight of a request that has ended falls to 1/e."""
_AHEAD: Final = 2.0
"""While a D's limit rises, so many times what it runs may be at a P in addition."""
_SLOW_PREFILL: Final = 0.05
"""Seconds of a prefill from which that is so; with shorter ones, D's limit rises soon enough by itself."""
QUICK_SECONDS: Final = 0.2
"""An engine whose answers take less may have as many requests as it ends in this time: so long they wait at most."""
_SHORTEST_SECONDS: Final = 0.1
"""Over less time, the number of requests that end varies too much."""
_USUAL_TOKENS: Final = 1024.0
"""Tokens of a request, as long as an engine has not shown how much of its KV cache one takes."""
_FULL_KV: Final = 0.9
"""From this use of the KV cache on, requests wait for blocks."""
_DEFERRED_SECONDS: Final = 20.0
"""How long requests must wait for their KV until they count."""
_PATIENCE: Final = 10
"""Reports with the limit reached and nothing waiting until one more request is tried."""
_DECREASES: Final = 2
"""Reports with waiting requests until a limit falls. A request that has just come waits for the next step."""
_INCREASES: Final = 2
"""Reports with the limit reached, nothing waiting and less than a full engine running until a limit rises."""


class Work(Enum):
    """What an engine does with a request."""

    DECODE = auto()
    """It answers: a D, or an aggregated engine. Its queue is short, because a request in it cannot go elsewhere."""
    PREFILL = auto()
    """It prefills. All requests of a step end together, so as many must wait for the next step."""


@dataclass(frozen=True, slots=True)
class EngineSample:
    """What an engine's metrics report at one moment, summed over its data-parallel ranks."""

    at: float
    """When, in seconds of the gateway's clock."""
    running: float
    waiting: float
    """Requests that wait for capacity."""
    deferred: float = 0.0
    """Requests that wait for something else: their KV, mostly."""
    kv_use: float = 0.0
    """Share of the KV blocks in use."""
    completed: float = 0.0
    """Requests that have ended since its start."""
    seconds: float = 0.0
    """The sum of their durations."""
    cache_tokens: int = 0
    """Tokens that the KV cache of one rank has room for; 0: not reported."""

    @classmethod
    def of(cls, metrics: EngineMetrics, at: float) -> "EngineSample":
        """Return what an engine's metrics report. What they do not have is 0.

        Requests that wait for their KV are in `waiting` too, but they do not wait for capacity.
        """
        deferred = metrics.waiting_by_reason.deferred if metrics.waiting_by_reason else 0.0
        waiting, ended = max(0.0, (metrics.waiting or 0.0) - deferred), metrics.latency
        running, kv_use = metrics.running or 0.0, metrics.kv_use or 0.0
        return cls(at, running, waiting, deferred, kv_use, ended.count, ended.total, metrics.cache_tokens)


@dataclass(frozen=True, slots=True)
class EngineLimit:
    """The limit of one engine, for the requests of all gateways together."""

    requests: float
    """Most requests that have reached it."""
    load: float = 0.0
    """Requests that had reached it at that moment."""
    grows: bool = False
    """Whether the engine may be able to run more, so that a further report soon may raise the limit."""
    was_full: bool = False
    """Whether it has run all that it could before."""
    rate: float = 0.0
    """Requests that end in a second at this load."""
    latency: float = 0.0
    """Seconds that a request takes, its wait in the engine's queue included."""
    queued: float = 0.0
    """Requests that waited in its queue for capacity at that moment."""


@dataclass(frozen=True, slots=True)
class Legs:
    """The legs of a gateway at one endpoint."""

    count: int
    """All in flight."""
    prefilling: int = 0
    """Those that have not reached their D, because a P works on their prompts."""
    blocked: int = 0
    """Those whose clients read more slowly than the endpoint answers. The endpoint may have finished with them."""


def room(work: Work, running: float) -> float:
    """How many requests wait in an engine that runs all it can; at a D, at most (see `LimitEstimator._reserve`).

    A request that comes next waits until these and one more have begun, at most one duration of a request. So fewer
    wait than run.
    """
    if work is Work.PREFILL:
        return max(1.0, running)
    return min(max(running - 1.0, 0.0), max(_RESERVE, _RESERVE_SHARE * running))


def tolerated(work: Work, running: float) -> float:
    """How many requests may wait in an engine for a moment."""
    return max(MOST_QUEUED, (1.0 if work is Work.PREFILL else QUEUED_SHARE) * running)


def own_limit(limit: EngineLimit, legs: Legs, ahead: float = 0.0) -> float:
    """One gateway's part of a limit: all of it, unless the engine has requests of others, too.

    `ahead`: requests of all gateways that may be at a P (see `under_way`). Several gateways see the same room at the
    same time, so each takes its share of it, by its share of the engine's requests. It assumes that the others have as
    many at a P, in proportion. It takes half of that share at once, because requests that reach the engine later cannot
    be taken back. A request counts no longer when the engine has generated the answer, and only the client does not
    read it.
    """
    reached: float = legs.count - legs.prefilling
    unread = min(legs.blocked, max(0.0, reached - limit.load))
    reached -= unread
    if limit.load <= reached:
        return max(1.0, limit.requests + ahead) + unread
    if reached <= 0:
        return max(1.0, legs.count)
    room = limit.requests + ahead - limit.load
    change = reached / limit.load * room - legs.prefilling
    return max(1.0, legs.count + (max(change / 2, min(1.0, room)) if change > 0 else change))


def under_way(decode: EngineLimit, prefill_seconds: float) -> float:
    """How many requests for a D may be at a P, so that D has room for each when P has finished: what ends meanwhile.

    While nothing has shown how many D can run, it may also get more each time if P is slow: otherwise D's limit would
    double only when P has finished. If D cannot run them, they wait in its queue.
    """
    ending = decode.rate * prefill_seconds
    if not decode.grows or decode.was_full:
        return ending
    return max(ending, min(prefill_seconds / _SLOW_PREFILL, 1.0) * max(MOST_QUEUED, _AHEAD * decode.load))


class LimitEstimator:
    """Estimates the limit of one engine from its reports."""

    __slots__ = (
        "_busy",
        "_deferred",
        "_each",
        "_ended",
        "_full_at",
        "_last",
        "_latency",
        "_limit",
        "_quick",
        "_quiet",
        "_runs",
        "_unended",
        "_waited",
        "_was_full",
        "_work",
    )

    def __init__(self, work: Work, runs: int = 0) -> None:
        """`runs`: how many requests the engine runs at a time, if its KV cache has room for them; 0: not known."""
        self._work = work
        self._runs = runs
        self._limit = FIRST_LIMIT
        self._each = 0.0
        """Share of its KV blocks that a request takes; 0: not known."""
        self._quick = 0.0
        """Requests that it ends in `QUICK_SECONDS`, if its answers take less."""
        self._full_at: float | None = None
        """Requests that it ran when others waited; None while nothing shows how many it can run."""
        self._was_full = False
        self._waited = 0
        """Consecutive reports with waiting requests."""
        self._quiet = 0
        """Consecutive reports without, at the limit."""
        self._last: EngineSample | None = None
        self._deferred = 0.0
        """How many requests wait for their KV all the time. Those whose P's finish together do so for a moment."""
        self._ended = 0.0
        """Requests that have ended, each with a weight that falls with time."""
        self._busy = 0.0
        """Seconds in which it had requests, weighted alike."""
        self._latency = 0.0
        self._unended = 0.0
        """For how long requests have run without one ending: they take longer than that."""

    def update(self, sample: EngineSample) -> EngineLimit:
        """Return the limit after one more report."""
        self._measure(sample)
        busy = sample.running + sample.deferred
        steady = sample.running + self._deferred
        if sample.waiting > 0:
            self._waited, self._quiet = self._waited + 1, 0
            self._fill(sample, steady)
        else:
            self._waited = 0
            self._quiet = self._quiet + 1 if busy >= floor(self._limit) else 0
            self._grow(sample, steady)
        limit = max(self._limit, self._quick)
        if sample.kv_use > _SCARCE_KV:
            limit = min(limit, busy / sample.kv_use + tolerated(self._work, busy))
        elif self._runs:
            more = (1 - sample.kv_use) / self._each if self._each else busy
            limit = min(limit, max(busy + more, FIRST_LIMIT))
        load = busy + sample.waiting
        rate = round(self._rate(load), 2)
        grows = self._full_at is None and not (self._runs and limit >= self._runs)
        return EngineLimit(limit, load, grows, self._was_full, rate, self._latency, sample.waiting)

    def _grow(self, sample: EngineSample, steady: float) -> None:
        """Nothing waits. Requests that wait for their KV do not show that the engine can run them too.

        The limit doubles, by `UNREPORTED_LIMIT` at most: few engines run more, and what they cannot run waits in them.
        """
        if self._full_at is None or sample.running > self._full_at:
            self._full_at = None
            if self._runs:
                most = float(self._runs)
                self._limit = max(most, steady) + self._reserve(most)
            else:
                doubled = min(max(MOST_QUEUED, steady), UNREPORTED_LIMIT)
                more = max(1.0, self._reserve(steady)) if self._was_full else doubled
                self._limit = max(self._limit, steady + more)
        elif self._quiet >= _INCREASES and sample.running < self._full_at:
            full = self._full_at + self._deferred
            self._limit = max(self._limit, full + self._reserve(full))
        elif self._quiet >= _PATIENCE:
            self._limit, self._quiet = self._limit + 1, 0

    def _reserve(self, running: float) -> float:
        """How many requests wait in an engine that runs all it can: as many as may end before others come.

        A request in its queue cannot go to the engine that has room first. If answers take seconds, that costs more
        than a short pause.
        """
        seconds, most = max(self._latency, self._unended), room(self._work, running)
        if self._work is Work.PREFILL or not seconds:
            return most
        return min(most, running * _SENDING_SECONDS / seconds)

    def _fill(self, sample: EngineSample, steady: float) -> None:
        """Requests wait, so the engine runs all it can: at once if too many wait, else when that is no coincidence.

        If it is known how many it runs, those that have just come begin with the next step. Without free blocks, the
        KV cache bounds the limit.
        """
        full = steady + self._reserve(steady)
        if self._runs and (sample.kv_use > _FULL_KV or sample.running >= self._runs):
            self._was_full = True
            if sample.running >= self._runs:
                self._limit = full
            return
        too_many = not self._runs and sample.waiting > tolerated(self._work, steady)
        if self._waited >= _DECREASES or too_many or full >= self._limit:
            if self._work is Work.PREFILL and self._full_at is not None:
                full = max(full, 0.8 * self._limit)  # prompts differ, and one long prompt fills a step
            self._full_at, self._was_full = sample.running, True
            self._limit = full

    def _measure(self, sample: EngineSample) -> None:
        last, self._last = self._last, sample
        if last is not None and sample.at > last.at and sample.deferred > self._deferred:
            risen = 1 - exp((last.at - sample.at) / _DEFERRED_SECONDS)
            self._deferred += risen * (sample.deferred - self._deferred)
        else:
            self._deferred = sample.deferred
        busy = sample.running + sample.deferred
        if busy and sample.kv_use:
            self._each = sample.kv_use / busy
        elif not self._each and sample.cache_tokens:
            self._each = _USUAL_TOKENS / sample.cache_tokens
        if last is None or sample.at <= last.at or sample.completed < last.completed:
            return
        ended, seconds = sample.completed - last.completed, sample.at - last.at
        self._unended = self._unended + seconds if last.running and sample.completed and not ended else 0.0
        if ended or last.running or last.waiting or last.deferred:
            kept = exp(-seconds / _RATE_SECONDS)
            self._ended, self._busy = kept * self._ended + ended, kept * self._busy + seconds
        if ended:
            latency = (sample.seconds - last.seconds) / ended
            self._latency = latency if not self._latency else _average(self._latency, latency)
            quick = ended / max(seconds, _SHORTEST_SECONDS) * QUICK_SECONDS
            self._quick = max(quick, _KEPT_SHARE * self._quick) if latency < QUICK_SECONDS else 0.0
        elif last.running and seconds >= QUICK_SECONDS:
            self._quick = 0.0

    def _rate(self, load: float) -> float:
        """How many requests end in a second: the smaller of what was counted and what follows from Little's law.

        Requests that begin together end together, so the count is too large for a moment. And the first that end are
        short, so their duration is too small.
        """
        return min(self._ended / self._busy, load / self._latency) if self._ended and self._latency else 0.0


def _average(before: float, value: float) -> float:
    return _KEPT_SHARE * before + (1 - _KEPT_SHARE) * value
