"""Exponential backoff with jitter."""

from collections.abc import Callable


class Backoff:
    """Seconds until the next attempt: doubled each time up to a limit, then varied by up to half either way."""

    def __init__(self, first: float, longest: float, random: Callable[[], float]) -> None:
        self._first = first
        self._longest = longest
        self._random = random
        self._delay = first

    def next(self) -> float:
        """The delay after one more failure."""
        delay, self._delay = self._delay, min(2 * self._delay, self._longest)
        return delay * (0.5 + self._random())

    def reset(self) -> None:
        """Start again with the first delay, after a success."""
        self._delay = self._first
