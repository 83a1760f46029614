"""Consecutive failures of an endpoint that answers. Decides; the observer sends the event."""

from collections.abc import Collection

from pdx_proxy.endpoints.endpoint import Endpoint
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
        self.counts: dict[tuple[str, int], int] = {}
        """By name and generation. Never zero, so it is empty while no engine fails."""

    def failed(self, endpoint: Endpoint, detail: str) -> Suspect | None:
        """Count a failure; return the event if the endpoint has reached the limit."""
        key = (endpoint.name, endpoint.generation)
        count = self.counts.get(key, 0) + 1
        if count == self.limit:
            self.counts.pop(key, None)
            return Suspect(*key, f"{count} consecutive {self._what}, the last: {detail}", self._cause)
        if self.limit:
            self.counts[key] = count
        return None

    def forgive(self, endpoint: Endpoint) -> None:
        """Take the last failure back: the engine did not cause it."""
        key = (endpoint.name, endpoint.generation)
        left = self.counts.pop(key, 0) - 1
        if left > 0:
            self.counts[key] = left

    def count(self, endpoint: Endpoint) -> int:
        """Return the consecutive failures of the endpoint so far."""
        return self.counts.get((endpoint.name, endpoint.generation), 0)

    def succeeded(self, endpoint: Endpoint) -> None:
        """Reset the count."""
        self.counts.pop((endpoint.name, endpoint.generation), None)

    def keep(self, generations: Collection[tuple[str, int]]) -> None:
        """Forget every other endpoint and generation."""
        if self.counts:
            self.counts = {key: count for key, count in self.counts.items() if key in generations}
