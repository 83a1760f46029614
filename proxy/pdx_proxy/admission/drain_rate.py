"""When a shed client may try again, from the rate at which requests end and the clients that return before it.

Pure: callers pass the time, in seconds.
"""

import math
from collections import deque
from typing import Final

LONGEST: Final = 60
"""Longest Retry-After, in seconds."""
_MARKS: Final = 60
_ENOUGH: Final = 20
"""Completed requests from which a rate is computed. Fewer vary too much."""
_UNMEASURED: Final = 5
"""Retry-After before any request has completed."""


class DrainRate:
    """How fast requests end, and how much of that is promised to clients that were shed.

    Each client that is shed is promised a place behind the queue and behind all clients that were promised one before.
    Otherwise all of them would return at the same moment, and most would be shed again.
    """

    __slots__ = ("_marks", "_promised_until")

    def __init__(self, now: float) -> None:
        self._marks: deque[tuple[float, int]] = deque([(now, 0)], maxlen=_MARKS)
        """Times and completed requests: at most one entry per second, when a request is queued or shed."""
        self._promised_until = 0.0

    def mark(self, now: float, completed: int) -> None:
        """Note the number of requests that have completed so far."""
        age = now - self._marks[-1][0]
        if age >= 1.0:
            if age > _MARKS:
                self._marks.clear()
            self._marks.append((now, completed))

    def rate(self, now: float, completed: int) -> float:
        """Requests that end in a second, from the last second or more with enough of them; 0: not measured."""
        for then, before in reversed(self._marks):
            if completed - before >= _ENOUGH and now - then >= 1.0:
                return (completed - before) / (now - then)
        then, before = self._marks[0]
        return (completed - before) / (now - then) if now > then else 0.0

    def promise(self, now: float, completed: int, ahead: float) -> int:
        """Whole seconds after which a client that is shed may come back, with `ahead` requests before it."""
        rate = self.rate(now, completed)
        if not rate:
            return _UNMEASURED
        at = max(now + ahead / rate, self._promised_until) + 1 / rate
        self._promised_until = min(at, now + LONGEST)
        return seconds_until(at - now)


def seconds_until(expected: float) -> int:
    """Retry-After for an expected time: whole seconds, at least 1."""
    return max(1, min(math.ceil(expected), LONGEST))
