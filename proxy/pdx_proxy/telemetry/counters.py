"""Counters as plain integers: incremented on the hot path, rendered when scraped, summed over workers."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import floor
from typing import Any, Final, Protocol

from pdx_api.names import Policy

BUCKETS: Final[tuple[float, ...]] = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 1200.0),
)
"""Upper bounds of the histograms, in seconds: from a hand-off inside one host to answers of many minutes.

The type has no fixed length: otherwise the compiler builds a new tuple of twenty floats at every use (0.1 µs).
"""
_PARTS: Final = 1 << 20


class Outcome(StrEnum):
    """How a request ended; every request ends in exactly one."""

    SPLIT = "split"
    """Answered, prefill and decode on different engines."""
    WHOLE = "whole"
    """Answered by one engine."""
    REFUSED_BY_ENGINE = "refused_by_engine"
    """An engine answered 4xx."""
    REFUSED = "refused"
    """The gateway answered 4xx, or refused a request of a client whose requests had killed engines."""
    SHED = "shed"
    """The gateway answered 429 or 503 because of a limit."""
    UNAVAILABLE = "unavailable"
    """No engine could answer."""
    BROKEN = "broken"
    """The engine was lost after the answer had begun."""
    IDLE = "idle"
    """The engine stopped sending after the answer had begun."""
    EXPIRED = "expired"
    """The request's total time was exceeded."""
    CLIENT_LEFT = "client_left"
    """The client disconnected before the answer was complete."""
    EXHAUSTED = "exhausted"
    """The gateway was out of ports, files, buffers or memory."""
    INTERNAL = "internal"
    """The gateway itself failed. Its log has the error."""


FAILED: Final = frozenset(
    (
        *(Outcome.SHED, Outcome.UNAVAILABLE, Outcome.BROKEN, Outcome.IDLE),
        *(Outcome.EXPIRED, Outcome.EXHAUSTED, Outcome.INTERNAL),
    )
)
"""Outcomes that the client did not cause."""


class ShedReason(StrEnum):
    """Why a request was shed."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    CLIENT_LIMIT = "client_limit"
    """Its client has too many open requests."""
    BYTES = "bytes"
    """The gateway buffers too many bytes of bodies."""


class Quarantine(StrEnum):
    """Why a request was refused after engines had died."""

    REQUEST = "request"
    """Engines died while they served a request with the same body."""
    CLIENT = "client"
    """Engines died of requests of its client, and those that it may use are not free."""


class Settlement(StrEnum):
    """How a hand-off that ended early was settled."""

    PREFILL_STOPPED = "prefill_stopped"
    """P was stopped while it prefilled."""
    RELEASED = "released"
    """P had finished; a leg to a D made it free its blocks."""
    FINISHED = "finished"
    """P finished: D waited for its push, and was closed then; or P must not be stopped."""
    LEASE = "lease"
    """P's blocks stay until their lease ends."""
    DECODE_LOST = "decode_lost"
    """P is gone while D waits for its push: D's blocks stay until its timeout or restart."""


class NotSplitReason(StrEnum):
    """Why a request that one engine served was not split."""

    PATH = "path"
    """Its path cannot be split."""
    PARAMETERS = "parameters"
    """It has parameters that P and D cannot serve together, for example n > 1."""
    SHORT = "short"
    """Its prompt is short by the estimate."""
    NEVER = "never"
    """The setting `split` is Never."""
    NO_PREFILL = "no_prefill"
    """No P was ready for it."""
    SUSPENDED = "suspended"
    """KV does not move to D."""
    LONG_QUEUE = "long_queue"
    """D's queue is longer than a push survives."""
    BURST = "burst"
    """The wait at every P would have used up the TTFT objective, and D keeps its TPOT."""
    SOONER = "sooner"
    """D finishes its prefill before a P would, and keeps its TPOT."""


class LocalPrefillReason(StrEnum):
    """Why D prefilled a request that could have been split."""

    NEVER = "never"
    """The setting `split` is Never."""
    NO_PREFILL = "no_prefill"
    """No P of a revision with a D was ready."""
    SUSPENDED = "suspended"
    """KV does not move to D."""
    FAILED = "failed"
    """An earlier attempt with a P failed."""
    LONG_QUEUE = "long_queue"
    """D's queue is longer than a push survives."""
    REFUSED = "refused"
    """An engine answered a leg with 4xx, for example because the prompt is too long for P."""
    NOTHING = "no_kv"
    """P answered without KV to hand over."""


class Affinity(StrEnum):
    """What happened to a key of prefix or session affinity."""

    KEPT = "kept"
    """The request went to the engine of its key."""
    MOVED = "moved"
    """That engine had too much load: the request went to the next one."""


class Phase(StrEnum):
    """A phase of a request."""

    QUEUE = "queue"
    """The wait in the queue. A request that did not wait is not counted."""
    TO_PREFILL = "to_prefill"
    """From the complete request to its first leg to a P: selection and connection."""
    PREFILL = "prefill"
    """P's leg, from the request to the answer."""
    HANDOFF = "handoff"
    """Streams only: from P's answer to the first event of D's; in push orders D's whole wait."""
    FIRST_TOKEN = "first_token"  # noqa: S105 (not a secret)
    """Streams only: from the request's last byte to the first event of the answer, the wait in the queue included."""
    TOTAL = "total"
    """From the request's head to the last byte of its answer."""


class Relay(Protocol):
    """An answer that is being relayed."""

    @property
    def source(self) -> str:
        """The name of its engine."""

    @property
    def relayed_chunks(self) -> int:
        """Pieces written to the client so far."""

    @property
    def paused(self) -> bool:
        """Whether the client is slower than the engine, so that its progress shows nothing about the engine."""


@dataclass(slots=True)
class Histogram:
    """Durations by bucket."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


def _by_role(labels: type[StrEnum]) -> dict[str, dict[str, int]]:
    return {role: dict.fromkeys((each.value for each in labels), 0) for role in ("prefill", "decode")}


@dataclass(slots=True)
class Counters:
    """One worker's counters since its start."""

    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    settlements: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Settlement, 0))
    retries: dict[str, int] = field(default_factory=dict)
    """Attempts that failed before the first event, by reason."""
    broken: dict[str, int] = field(default_factory=dict)
    """Answers that did not reach their end, by engine."""
    sheds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ShedReason, 0))
    """Requests that were shed, by reason."""
    quarantined: dict[str, int] = field(default_factory=lambda: dict.fromkeys((each.value for each in Quarantine), 0))
    """Requests that were refused after engines had died, by reason."""
    not_split: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NotSplitReason, 0))
    affinity: dict[str, dict[str, int]] = field(default_factory=lambda: _by_role(Affinity))
    """By role. An aggregated engine counts as decode."""
    choices: dict[str, dict[str, int]] = field(default_factory=lambda: _by_role(Policy))
    """Selected engines, by role and by the policy that decided."""
    local_prefills: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((each.value for each in LocalPrefillReason), 0)
    )
    """Requests that could be split but were prefilled by D, by reason."""
    chunks: int = 0
    """Pieces of answers written to clients, without those of `relays`."""
    relays: set[Relay] = field(default_factory=set)
    """Open relays. Each counts its own pieces, which are added to `chunks` when it ends."""
    pinned: dict[str, int] = field(default_factory=dict)
    """By P: completed prefills whose KV no D has loaded. Never zero."""
    retries_refused: int = 0
    """Attempts that were not made because the retry budget was used up."""
    phases: dict[str, Histogram] = field(default_factory=lambda: {phase.value: Histogram() for phase in Phase})
    requests_in_flight: int = 0
    """Open requests, queued ones included."""
    queued: int = 0
    """Requests in the queue."""
    settling: int = 0
    """Hand-offs that are being settled."""

    def retried(self, reason: str) -> None:
        """Count an attempt that failed."""
        self.retries[reason] = self.retries.get(reason, 0) + 1

    def broke(self, endpoint: str) -> None:
        """Count an answer of this engine that did not reach its end."""
        self.broken[endpoint] = self.broken.get(endpoint, 0) + 1

    def pin(self, prefill: str) -> None:
        """A P has finished, and its KV waits for a D. Call `unpin` once for each call."""
        self.pinned[prefill] = self.pinned.get(prefill, 0) + 1

    def unpin(self, prefill: str) -> None:
        """A D has loaded the KV, or its blocks are free."""
        remaining = self.pinned[prefill] - 1
        if remaining:
            self.pinned[prefill] = remaining
        else:
            del self.pinned[prefill]

    def report(self, legs: Mapping[str, int]) -> dict[str, Any]:
        """Everything as JSON values, with the legs in flight by endpoint."""
        return {
            "outcomes": dict(self.outcomes),
            "settlements": dict(self.settlements),
            "retries": dict(self.retries),
            "broken": dict(self.broken),
            "sheds": dict(self.sheds),
            "quarantined": dict(self.quarantined),
            "notSplit": dict(self.not_split),
            "affinity": {role: dict(counts) for role, counts in self.affinity.items()},
            "choices": {role: dict(counts) for role, counts in self.choices.items()},
            "localPrefills": dict(self.local_prefills),
            "chunks": self.chunks + sum(relay.relayed_chunks for relay in self.relays),
            "held": dict(self.pinned),
            "retriesRefused": self.retries_refused,
            "phases": {name: {"counts": h.counts, "total": _exact(h.total)} for name, h in self.phases.items()},
            "inFlight": {"requests": self.requests_in_flight, "queued": self.queued, "settling": self.settling},
            "legs": dict(legs),
        }


def _exact(seconds: float) -> float:
    """Round down to a multiple of 2**-20 s, about 1 us. Sums of such numbers are exact in any order.

    Otherwise a sum over workers could decrease by its last bit, which Prometheus takes for a restart.
    """
    return floor(seconds * _PARTS) / _PARTS


def add_reports(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of several workers' reports."""
    total = Counters().report({})
    for report in reports:
        _add(total, report)
    return total


def _add(into: dict[str, Any], report: Mapping[str, Any]) -> None:
    for key, value in report.items():
        if isinstance(value, Mapping):
            _add(into.setdefault(key, {}), value)
        elif isinstance(value, list):
            into[key] = [a + b for a, b in zip(into.get(key, [0] * len(value)), value, strict=True)]
        else:
            into[key] = into.get(key, 0) + value
