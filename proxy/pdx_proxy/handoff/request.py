"""A client's request on its way to engines, and the answer that opens: one carrier for each."""

from math import inf
from typing import Final, Protocol

from pdx_proxy.admission.permit import Permit
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.leg import Leg
from pdx_proxy.payload.body import Body, LegBody
from pdx_proxy.telemetry.timeline import Timeline

_CREDENTIAL: Final = "authorization"
"""The header with a client's own credential. No other one is passed on to engines (`serving.reader`)."""


class StreamStart(Protocol):
    """What begins when engines begin to work on a stream."""

    def start(self) -> None:
        """The request has left the queue."""


class Request:
    """A request that may go to an engine."""

    __slots__ = (
        "body",
        "deadline",
        "divisible",
        "headers",
        "keep_alive",
        "only",
        "path",
        "permit",
        "settled_at",
        "timeline",
    )

    def __init__(
        self,
        path: str,
        body: Body,
        headers: tuple[tuple[str, str], ...],
        divisible: bool,
        timeline: Timeline,
        permit: Permit,
        deadline: float = inf,
        keep_alive: StreamStart | None = None,
    ) -> None:
        self.path = path
        self.body = body
        self.headers = headers
        """The client's headers that go to engines."""
        self.divisible = divisible
        """Whether prefill and decode may run on different engines. An attempt is split if its choice has a P."""
        self.timeline = timeline
        self.permit = permit
        """Whatever goes on with the request when its client has its answer must hold it too."""
        self.deadline = deadline
        """When the request expires, in the loop's time."""
        self.keep_alive = keep_alive
        """Is started when a stream leaves the queue; None: nothing happens then."""
        self.only: frozenset[str] | None = None
        """Names of the engines that may serve it; None: all."""
        self.settled_at: tuple[Endpoint, ...] = ()
        """Engines that received its whole prompt only to settle one of its hand-offs."""

    @property
    def credential(self) -> int:
        """What stands for the client's own credential, which goes to engines; 0 without one."""
        for name, value in self.headers:
            if name == _CREDENTIAL:
                return hash(value) or 1
        return 0

    @property
    def stream(self) -> bool:
        """Whether the answer is a stream. Deadlines depend on it."""
        return self.body.decisions.stream

    def selectable(self, snapshot: Snapshot) -> Snapshot:
        """Return the engines that may serve it."""
        return snapshot if self.only is None else snapshot.only(self.only)

    def restrict(self, names: frozenset[str]) -> None:
        """Only engines of these names may serve it."""
        self.only = names

    def settle_at(self, endpoint: Endpoint) -> None:
        """The engine receives its whole prompt to settle a hand-off."""
        self.settled_at = (*self.settled_at, endpoint)

    def leave_queue(self, waited: float) -> None:
        """The request has waited so many seconds in the gateway's queue. They do not use up its deadline."""
        timeline = self.timeline
        timeline.queued = waited
        timeline.read += waited
        self.deadline += waited


class Handoff:
    """D's open answer. `prefill` is its P; None if D serves the request whole. Its owner must end the leg."""

    __slots__ = ("body", "decode", "prefill")

    def __init__(self, decode: Leg, prefill: Endpoint | None = None) -> None:
        self.decode = decode
        self.prefill = prefill
        self.body: tuple[LegBody, LegBody] | int = 0
        """What identifies the request's body while its answer is relayed, because the engine may still die of it.

        Its parts if they are small, else their hash; 0 if the answer is complete.
        """

    def remember(self, body: tuple[LegBody, LegBody] | int) -> None:
        """Keep what identifies the request's body, which is dropped while the answer is relayed."""
        self.body = body
