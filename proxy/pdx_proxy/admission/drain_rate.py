"""When a shed client may try again, from the rate at which requests end and the clients that return before it.

Pure: callers pass the time, in seconds.
"""

from math import ceil
from typing import Final

LONGEST: Final = 60
"""Longest Retry-After, in seconds."""
_KEPT_SHARE: Final = 0.95
"""Weight of the earlier duration when one more request has ended."""
_UNMEASURED: Final = 5
"""Retry-After before any request has ended; more than one client gets from 1 second to 9."""
_STEP: Final = 4
"""So far apart are two clients that are shed one after the other before anything is measured."""


class DrainRate:
    """How fast requests end, and how much of that is promised to clients that were shed.

    By Little's law, as many end in a second as are in flight, divided by the duration of one. Requests that begin
    together end together, so a count of those that have ended shows less.

    Each client that is shed is promised a place behind the queue and behind all clients that were promised one before.
    Otherwise all of them would return at the same moment, and most would be shed again.
    """

    __slots__ = ("_completed", "_duration", "_promised_until", "_seconds", "_unmeasured")

    def __init__(self) -> None:
        self._completed = 0
        self._seconds = 0.0
        self._duration = 0.0
        """Seconds of a request at engines; 0: none has ended."""
        self._promised_until = 0.0
        self._unmeasured = 0

    def mark(self, completed: int, seconds: float) -> None:
        """Note how many requests have ended so far, and the sum of their durations."""
        ended = completed - self._completed
        if ended <= 0:
            return
        latest = (seconds - self._seconds) / ended
        kept = _KEPT_SHARE**ended if self._duration else 0.0
        self._duration = kept * self._duration + (1 - kept) * latest
        self._completed, self._seconds = completed, seconds

    def rate(self, in_flight: int) -> float:
        """Requests that end in a second; 0: not measured."""
        return in_flight / self._duration if self._duration > 0.0 else 0.0

    def promise(self, now: float, in_flight: int, ahead: float, early: float) -> int:
        """Whole seconds after which a client that is shed may come back.

        `ahead`: requests that are served before it. `early`: by so much it comes back before its turn, to wait in the
        queue.
        """
        rate = self.rate(in_flight)
        if not rate:
            self._unmeasured = (self._unmeasured + _STEP) % (2 * _UNMEASURED - 1)
            return 1 + self._unmeasured
        at = max(now + ahead / rate, self._promised_until) + 1 / rate
        if at - now > LONGEST + early:
            at = now + max(ahead / rate, (LONGEST + early) / 2)  # more than can be promised: spread them over the rest
        self._promised_until = at
        return seconds_until(at - now - early)


def seconds_until(expected: float) -> int:
    """Retry-After for an expected time: whole seconds, at least 1."""
    return max(1, min(ceil(expected), LONGEST))
