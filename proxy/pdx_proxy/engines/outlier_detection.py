"""Consecutive failures of an endpoint that answers. Decides; the observer sends the event."""

from collections.abc import Collection

from pdx_proxy.endpoints.endpoint import Endpoint, Start
from pdx_proxy.endpoints.events import Cause, Suspect


class OutlierDetector:
    """One worker's counts of consecutive failures. A success resets the count."""

    __slots__ = ("_cause", "_what", "counts", "limit")

    def __init__(self, limit: int, cause: Cause = Cause.CONSECUTIVE_ERRORS, what: str = "errors") -> None:
        """`what` names the failures in the reason of the event."""
        self._cause = cause
        self._what = what
        self.limit = limit
        """Consecutive failures that make an endpoint suspect; 0: no number does."""
        self.counts: dict[Start, int] = {}
        """Never zero, so it is empty while no engine fails."""

    def failed(self, endpoint: Endpoint, detail: str) -> Suspect | None:
        """Count a failure; return the event if the endpoint has reached the limit."""
        start = endpoint.start
        count = self.counts.get(start, 0) + 1
        if count == self.limit:
            self.counts.pop(start, None)
            return Suspect(*start, f"{count} consecutive {self._what}, the last: {detail}", self._cause)
        if self.limit:
            self.counts[start] = count
        return None

    def forgive(self, endpoint: Endpoint) -> None:
        """Take the last failure back: the engine did not cause it."""
        left = self.counts.pop(endpoint.start, 0) - 1
        if left > 0:
            self.counts[endpoint.start] = left

    def count(self, endpoint: Endpoint) -> int:
        """Return the consecutive failures of the endpoint so far."""
        return self.counts.get(endpoint.start, 0)

    def succeeded(self, endpoint: Endpoint) -> None:
        """Reset the count."""
        self.counts.pop(endpoint.start, None)

    def keep(self, starts: Collection[Start]) -> None:
        """Forget every other start."""
        if self.counts:
            self.counts = {start: count for start, count in self.counts.items() if start in starts}
