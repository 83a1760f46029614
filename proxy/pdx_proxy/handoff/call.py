"""A request on its way to engines, with the timeline of what happens to it and what it holds of the gateway."""

from pdx_proxy.admission.permit import Permit
from pdx_proxy.payload.request import Request
from pdx_proxy.telemetry.timeline import Timeline


class Call:
    """One client's request, its timeline and its permit."""

    __slots__ = ("permit", "request", "timeline")

    def __init__(self, request: Request, timeline: Timeline, permit: Permit) -> None:
        self.request = request
        self.timeline = timeline
        self.permit = permit
        """Whatever goes on with the request when its client has its answer must hold it too."""

    def whole(self) -> "Call":
        """The same call, not split, with the same timeline and permit."""
        return Call(self.request.whole(), self.timeline, self.permit)
