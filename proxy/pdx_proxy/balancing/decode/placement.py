"""Where a prompt is prefilled if there is an SLO: at a P, or at a D, which then serves the whole request. Pure.

A D prefills a prompt that it would finish first, as long as its streams keep their TPOT. A prefill at D takes steps
from its streams: while a share f of its time goes into prefills, their ITL is that of the batch / (1 - f).
"""

from collections.abc import Sequence
from enum import Enum, auto
from math import exp
from typing import Final

MARGIN: Final = 0.9
"""The part of the TPOT objective that is planned with. The rest is for what the estimates do not show."""
_SOONER_SHARE: Final = 0.5
"""The part of a D's spare time that may be used while P's are in time."""
_SOONER: Final = 0.95
"""D's wait must be shorter than this part of P's, so that equal waits change nothing."""
_BURST_WAIT: Final = 0.7
"""A late request is a burst if the wait before its own prefill takes more than this part of the TTFT."""
_BATCH: Final = 4.0
"""The least limit of a batch. Below it, streams would hardly become faster."""
_MOST_BATCH: Final = 100_000.0
_LEAST_WINDOW: Final = 2.0
_MOST_WINDOW: Final = 30.0
_USUAL_WINDOW: Final = 10.0


class Targets:
    """The objectives in seconds, 0: none. Immutable by convention."""

    __slots__ = ("tpot", "ttft")

    def __init__(self, ttft: float = 0.0, tpot: float = 0.0) -> None:
        self.ttft = ttft
        self.tpot = tpot

    @property
    def places(self) -> bool:
        """Whether it decides where prompts are prefilled: only if it also protects the streams of D's."""
        return self.ttft > 0.0 and self.tpot > 0.0


class Place(Enum):
    """Why a D prefills."""

    BURST = auto()
    """The wait at every P would use up the TTFT."""
    SOONER = auto()
    """It finishes first, though P's would be in time."""


class Candidate:
    """A D that has room for one more request. Immutable by convention."""

    __slots__ = ("idle", "itl", "seconds", "share", "wait")

    def __init__(self, wait: float, seconds: float, itl: float, share: "PrefillShare", idle: bool) -> None:
        self.wait = wait
        """Seconds until it would have prefilled the prompt, its backlog included."""
        self.seconds = seconds
        """Of these, the seconds for this prompt."""
        self.itl = itl
        """Its ITL with one more request, without prefills."""
        self.share = share
        """The share of its time that its prefills take already."""
        self.idle = idle
        """Whether it has no request, so that there is no stream to slow down."""


class PrefillWait:
    """How long the prompt would take at the P that finishes it first. Immutable by convention."""

    __slots__ = ("own", "seconds")

    def __init__(self, seconds: float, own: float) -> None:
        self.seconds = seconds
        """Until D has its KV."""
        self.own = own
        """Without what P's have to do before."""


def place(
    candidates: Sequence[Candidate], prefill: PrefillWait, waited: float, slo: Targets, now: float
) -> tuple[int, Place] | None:
    """Return the D that prefills and why, or None if a P does.

    `waited`: seconds since the request was read. Of D's that keep their TPOT, the one that finishes first is selected.
    """
    late = waited + prefill.seconds > slo.ttft >= prefill.own  # a longer prompt would be late at an idle P, too
    found, least = -1, prefill.seconds * _SOONER
    for index, each in enumerate(candidates):
        if each.wait < least and (each.idle or _keeps_tpot(each, slo.tpot, late, now)):
            found, least = index, each.wait
    if found < 0:
        return None
    burst = late and waited + prefill.seconds - prefill.own > _BURST_WAIT * slo.ttft
    return found, Place.BURST if burst else Place.SOONER


def _keeps_tpot(candidate: Candidate, tpot: float, late: bool, now: float) -> bool:
    """Whether the streams have time for the prefill. If P's are in time, it must suit short streams, too."""
    spare, share = 1.0 - candidate.itl / (MARGIN * tpot), candidate.share
    if not late:
        spare *= _SOONER_SHARE
        if candidate.seconds > spare * share.latency:
            return False
    return share.at(now) + candidate.seconds / share.window <= spare


def batch_limit(base: float, slope: float, share: float, tpot: float) -> float | None:
    """Return the largest batch whose ITL, `base + slope * batch`, keeps the TPOT; None if no limit helps.

    `share`: of the engine's time that prefills take. No limit helps an engine whose ITL is longer with any batch, nor
    one that its batch does not slow down.
    """
    spare = MARGIN * tpot * (1.0 - share) - base
    if MARGIN * tpot <= base or slope <= 0.0:
        return None
    batch = max(_BATCH, spare / slope)
    return batch if batch < _MOST_BATCH else None


class PrefillShare:
    """The share of a D's time that prefills take, from those that were sent to it.

    A stream keeps its TPOT if the prefills of its whole duration leave it enough time, so they are averaged over the
    duration of a request.
    """

    __slots__ = ("_at", "_done", "_seconds", "_sent", "latency", "window")

    def __init__(self) -> None:
        self._at = 0.0
        self._seconds = 0.0
        """Seconds of prefills. Those of the past count less."""
        self._sent = 0.0
        """Seconds of all prefills that were sent to it."""
        self._done = 0.0
        """Those of them that it had done when `worked` was called last."""
        self.latency = _USUAL_WINDOW
        """Seconds that a request takes at D."""
        self.window = _USUAL_WINDOW
        """After this time a prefill counts e times less."""

    def measure(self, latency: float) -> None:
        """Set the duration of a request at D; 0: not reported."""
        if latency > 0.0:
            self.latency, self.window = latency, max(_LEAST_WINDOW, min(latency, _MOST_WINDOW))

    def at(self, now: float) -> float:
        """Return the share."""
        return self._seconds * exp(-max(now - self._at, 0.0) / self.window) / self.window

    def add(self, seconds: float, now: float) -> None:
        """A prefill of so many seconds has been sent to it."""
        self._sent += seconds
        self._seconds = self.at(now) * self.window + seconds
        self._at = now

    def take_back(self, seconds: float, sent_at: float) -> None:
        """A prefill of so many seconds that was sent to it is not done."""
        self._sent -= seconds
        left = self._seconds - seconds * exp(-max(self._at - sent_at, 0.0) / self.window)
        self._seconds = max(left, 0.0)

    def worked(self, left: float) -> float:
        """Return the seconds of prefills that it has done since the last call; `left` are still to do."""
        before, self._done = self._done, self._sent - left
        return max(self._done - before, 0.0)
