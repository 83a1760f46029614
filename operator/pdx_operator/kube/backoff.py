"""Growing delays that differ between those who wait."""

from collections.abc import Callable


class Backoff:
    """Seconds to wait before the next attempt: doubled each time up to a limit, and varied by half either way."""

    def __init__(self, first: float, most: float, random: Callable[[], float]) -> None:
        self._first = first
        self._most = most
        self._random = random
        self._delay = first

    def next(self) -> float:
        """The delay after one more failure."""
        delay, self._delay = self._delay, min(2 * self._delay, self._most)
        return delay * (0.5 + self._random())

    def reset(self) -> None:
        """Something worked: begin anew."""
        self._delay = self._first
