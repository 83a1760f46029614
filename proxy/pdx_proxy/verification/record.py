"""Pairs of engines and the record of what transfer probes have shown about each. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pdx_api.verification import Cause, Verdict
from pdx_proxy.endpoints.endpoint import Endpoint, Names

_RETRY_SECONDS: Final = 10.0
"""Pause after a failed probe; it doubles with each further failure, up to the verification period."""
_BUSY_SECONDS: Final = 5.0
"""Pause after a probe that could not be completed."""

Pair = tuple[Endpoint, Endpoint]
"""P and D."""
LISTED: Final = 3
"""Broken pairs that a finding lists."""


@dataclass(frozen=True, slots=True)
class Unequal:
    """The pairs of revisions in which none pairs, because the versions differ."""

    count: int = 0
    first: tuple[Pair, ...] = ()
    """At most `LISTED` of them."""


NONE_UNEQUAL: Final = Unequal()


class Result(StrEnum):
    """The result of one transfer probe. The values are labels of a metric."""

    MOVED = "moved"
    """D took the KV of the prompt from P and answered as it does alone."""
    RECOMPUTED = "recomputed"
    """D computed the prompt."""
    WRONG_TEXT = "wrong_text"
    """D's answer over P's KV differs from its answer alone."""
    FAILED = "failed"
    """The hand-off failed, while D alone answers."""
    NOT_REPORTED = "not_reported"
    """D does not report where the KV of the prompt came from."""
    BUSY = "busy"
    """An engine was too busy or absent; nothing is proved about KV."""


@dataclass(frozen=True, slots=True)
class Record:
    """What transfer probes have shown about a pair."""

    generations: tuple[int, int]
    """The generations of P and D that were probed. A pair of other generations is due at once."""
    at: float
    """When the last probe ended, in seconds of the gateway's clock."""
    result: Result
    """Result of the last probe."""
    verdict: Verdict
    """Verdict of the last probe that proved anything."""
    seen: str = ""
    cause: Cause = Cause.PORTS
    failures: int = 0
    """Consecutive probes that failed."""

    def due_at(self, period: float) -> float:
        """Return when this pair must be probed again, whatever else is probed; infinity while KV moves."""
        if self.result is Result.MOVED or self.result is Result.NOT_REPORTED:
            return float("inf")
        if self.result is Result.BUSY or (self.result is Result.WRONG_TEXT and self.verdict is not Verdict.BROKEN):
            return self.at + _BUSY_SECONDS
        return self.at + min(_RETRY_SECONDS * 2.0 ** (self.failures - 1), period)


def names_of(pair: Pair) -> Names:
    """Return the key of a pair's record."""
    return (pair[0].name, pair[1].name)


def generations_of(pair: Pair) -> tuple[int, int]:
    """Return the generations of both engines. A P that is not warm still has that of its last warm-up."""
    return (pair[0].generation, pair[1].generation)


def current_record(records: Mapping[Names, Record], pair: Pair) -> Record | None:
    """Return the pair's record unless it is about an earlier generation of one of the engines."""
    record = records.get(names_of(pair))
    return record if record is not None and record.generations == generations_of(pair) else None
