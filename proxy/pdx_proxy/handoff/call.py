"""A request on its way to engines, with its timeline and its permit."""

from typing import Protocol

from pdx_proxy.admission.permit import Permit
from pdx_proxy.payload.request import Request
from pdx_proxy.telemetry.timeline import Timeline


class StreamStart(Protocol):
    """What begins when engines begin to work on a stream."""

    def start(self) -> None:
        """The request has left the queue."""


class Call:
    """One client's request, its timeline and its permit."""

    __slots__ = ("keep_alive", "permit", "request", "timeline")

    def __init__(
        self, request: Request, timeline: Timeline, permit: Permit, keep_alive: StreamStart | None = None
    ) -> None:
        self.request = request
        self.timeline = timeline
        self.keep_alive = keep_alive
        """Is started when a stream leaves the queue; None: nothing happens then."""
        self.permit = permit
        """Whatever goes on with the request when its client has its answer must hold it too."""

    def whole(self) -> "Call":
        """The same call, not split, with the same timeline and permit."""
        return Call(self.request.whole(), self.timeline, self.permit, self.keep_alive)
