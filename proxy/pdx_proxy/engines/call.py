"""A request on its way to engines, with the timeline of what happens to it."""

from pdx_proxy.payload.request import Request
from pdx_proxy.telemetry.timeline import Timeline


class Call:
    """One client's request and its timeline."""

    __slots__ = ("request", "timeline")

    def __init__(self, request: Request, timeline: Timeline) -> None:
        self.request = request
        self.timeline = timeline

    def whole(self) -> "Call":
        """The same call, not split, with the same timeline."""
        return Call(self.request.whole(), self.timeline)
