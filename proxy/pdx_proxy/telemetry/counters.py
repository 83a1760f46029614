"""What happened, as plain integers: added to on the hot path, rendered when scraped, summed over workers."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from pdx_api.names import Policy

BUCKETS: Final[tuple[float, ...]] = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 1200.0),
)
"""Upper bounds of the histograms, in seconds: from a hand-over inside one host to answers of many minutes.

Of no fixed length: the compiler would make a value of twenty floats of it, and a new object at every use (0.1 µs).
"""


class Outcome(StrEnum):
    """How a request ended; every request ends in exactly one."""

    SPLIT = "split"
    """Answered, prefill and decode on different engines."""
    WHOLE = "whole"
    """Answered by one engine."""
    REFUSED_BY_ENGINE = "refused_by_engine"
    """A 4xx of an engine."""
    REFUSED = "refused"
    """A 4xx of the gateway."""
    SHED = "shed"
    """Told to come again later (429 or 503), and by no engine."""
    UNAVAILABLE = "unavailable"
    """No engine could answer."""
    BROKEN = "broken"
    """The engine was lost after the answer had begun."""
    IDLE = "idle"
    """The engine sent nothing more of an answer that had begun."""
    EXPIRED = "expired"
    """The whole request's time was over."""
    CLIENT_LEFT = "client_left"
    """The client was gone before the answer was complete."""
    INTERNAL = "internal"
    """The gateway itself failed: its log names the error."""


class ShedReason(StrEnum):
    """Why a request was shed."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    CLIENT_LIMIT = "client_limit"
    """Its client has too many open requests."""
    BYTES = "bytes"
    """The gateway holds too many bytes of bodies."""


class Settlement(StrEnum):
    """How a hand-off that nobody wanted any more was settled."""

    PREFILL_STOPPED = "prefill_stopped"
    """P was stopped while it prefilled."""
    RELEASED = "released"
    """P had finished; a D leg made it free its blocks."""
    FINISHED = "finished"
    """P was left to finish: D had been told to wait, and was closed then; or P may not be stopped."""
    LEASE = "lease"
    """P's blocks wait for the end of their lease."""
    DECODE_LOST = "decode_lost"
    """P is gone while D waits for its push: D's blocks stay until its own time-out or restart."""


class Whole(StrEnum):
    """Why a request that one engine served was not split."""

    PATH = "path"
    """Its path is none that can be split."""
    PARAMETERS = "parameters"
    """It asks for what P and D cannot do together, as n > 1."""
    SHORT = "short"
    """Its prompt is short, as estimated."""
    NO_PREFILL = "no_prefill"
    """No P was ready for it."""


class Local(StrEnum):
    """Why D prefilled a request that could have been split."""

    NO_PREFILL = "no_prefill"
    """No P of a revision with a D was ready."""
    FAILED = "failed"
    """What was tried over a P before has failed."""
    REFUSED = "refused"
    """An engine answered its leg with a 4xx: as when the prompt is too long for P."""
    NOTHING = "no_kv"
    """P has answered without KV to hand over."""


class Affinity(StrEnum):
    """What became of a key."""

    KEPT = "kept"
    """It went to the engine that it belongs to."""
    MOVED = "moved"
    """That engine had too much: it went to the next one."""


class Phase(StrEnum):
    """What a request waited for."""

    QUEUE = "queue"
    """Its turn. Who did not have to wait is not counted."""
    TO_PREFILL = "to_prefill"
    """The request admitted and read, to the sending of its first leg to a P: choice and connection."""
    PREFILL = "prefill"
    """P's leg, from its sending to its answer."""
    HANDOFF = "handoff"
    """Of streams: P's answer to the first event of D's body; in push orders D's whole wait."""
    FIRST_TOKEN = "first_token"  # noqa: S105 (not a secret)
    """Of streams: the request's last byte to the first event of its answer, the wait for its turn included."""
    TOTAL = "total"
    """The request from its head to the last byte of its answer."""


@dataclass(slots=True)
class Histogram:
    """Counts of durations by bucket."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


def _choices() -> dict[str, dict[str, int]]:
    return {role: dict.fromkeys((each.value for each in Policy), 0) for role in ("prefill", "decode")}


@dataclass(slots=True)
class Counters:
    """One worker's counters since its start."""

    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    settlements: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Settlement, 0))
    retries: dict[str, int] = field(default_factory=dict)
    """Attempts that failed before the first event, by reason."""
    sheds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ShedReason, 0))
    """Requests that were shed, by reason."""
    not_split: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Whole, 0))
    affinity: dict[str, dict[str, int]] = field(
        default_factory=lambda: {
            role: dict.fromkeys((each.value for each in Affinity), 0) for role in ("prefill", "decode")
        }
    )
    """By role; an aggregated engine counts as decode."""
    choices: dict[str, dict[str, int]] = field(default_factory=_choices)
    """Engines chosen, by role and by the policy that decided."""
    local_prefills: dict[str, int] = field(default_factory=lambda: dict.fromkeys((each.value for each in Local), 0))
    """Requests that could be split and were prefilled by D, by reason."""
    chunks: int = 0
    """Pieces of answers written to clients."""
    held: dict[str, int] = field(default_factory=dict)
    """Prefills that have ended and whose KV no D has taken yet, by P. Never zero."""
    retries_refused: int = 0
    """Attempts that were not made because the retry budget was used up."""
    phases: dict[str, Histogram] = field(default_factory=lambda: {phase.value: Histogram() for phase in Phase})
    requests_in_flight: int = 0
    """Open requests, those that wait for their turn included."""
    queued: int = 0
    """Requests that wait for their turn."""
    settling: int = 0
    """Hand-offs that are being settled."""

    def retried(self, reason: str) -> None:
        """Count an attempt that failed."""
        self.retries[reason] = self.retries.get(reason, 0) + 1

    def hold(self, prefill: str) -> None:
        """A P has finished, and its KV waits for a D: `let_go` comes once for each call."""
        self.held[prefill] = self.held.get(prefill, 0) + 1

    def let_go(self, prefill: str) -> None:
        """The KV has been taken, or its blocks are free."""
        left = self.held[prefill] - 1
        if left:
            self.held[prefill] = left
        else:
            del self.held[prefill]

    def report(self, legs: Mapping[str, int]) -> dict[str, Any]:
        """Everything as JSON values, with the legs in flight by endpoint."""
        return {
            "outcomes": dict(self.outcomes),
            "settlements": dict(self.settlements),
            "retries": dict(self.retries),
            "sheds": dict(self.sheds),
            "notSplit": dict(self.not_split),
            "affinity": {role: dict(counts) for role, counts in self.affinity.items()},
            "choices": {role: dict(counts) for role, counts in self.choices.items()},
            "localPrefills": dict(self.local_prefills),
            "chunks": self.chunks,
            "held": dict(self.held),
            "retriesRefused": self.retries_refused,
            "phases": {name: {"counts": h.counts, "total": h.total} for name, h in self.phases.items()},
            "inFlight": {"requests": self.requests_in_flight, "queued": self.queued, "settling": self.settling},
            "legs": dict(legs),
        }


def add_reports(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of several workers' reports."""
    total = Counters().report({})
    for report in reports:
        _add(total, report)
    return total


def _add(into: dict[str, Any], what: Mapping[str, Any]) -> None:
    for key, value in what.items():
        if isinstance(value, Mapping):
            _add(into.setdefault(key, {}), value)
        elif isinstance(value, list):
            into[key] = [a + b for a, b in zip(into.get(key, [0] * len(value)), value, strict=True)]
        else:
            into[key] = into.get(key, 0) + value
