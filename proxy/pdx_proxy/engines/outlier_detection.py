"""Failures in a row: an engine that answers, but only that it failed."""

from collections.abc import Collection
from dataclasses import dataclass, field

from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.events import Cause, EventSink, Suspect


@dataclass(slots=True)
class OutlierDetector:
    """One worker's count. An answer that succeeds ends a streak; one that says "busy" (503) or 4xx changes nothing."""

    limit: int
    """Failures in a row that make the endpoint suspect; 0: none do."""
    notify: EventSink
    counts: dict[tuple[str, int], int] = field(default_factory=dict)
    """By name and start, never zero: while no engine fails there is nothing to look up."""

    def failed(self, endpoint: Endpoint, detail: str) -> None:
        """One answer more that says that the engine failed."""
        key = (endpoint.name, endpoint.generation)
        count = self.counts.get(key, 0) + 1
        if count == self.limit:
            self.counts.pop(key, None)
            self.notify(Suspect(*key, f"{count} failures in a row, the last: {detail}", Cause.CONSECUTIVE_ERRORS))
        elif self.limit:
            self.counts[key] = count

    def forgive(self, endpoint: Endpoint) -> None:
        """The last failure was not its own."""
        key = (endpoint.name, endpoint.generation)
        left = self.counts.pop(key, 0) - 1
        if left > 0:
            self.counts[key] = left

    def succeeded(self, endpoint: Endpoint) -> None:
        """The engine has answered as it should."""
        self.counts.pop((endpoint.name, endpoint.generation), None)

    def keep(self, starts: Collection[tuple[str, int]]) -> None:
        """Forget endpoints that are gone and starts that are over."""
        if self.counts:
            self.counts = {key: count for key, count in self.counts.items() if key in starts}
