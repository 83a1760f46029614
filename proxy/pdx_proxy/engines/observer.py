"""Reports of legs and hand-offs: checked for consecutive failures, and sent to the control side."""

from typing import Final

from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.prefill.backlog import Reservation
from pdx_proxy.endpoints.endpoint import Endpoint, Pairing, Start, pairing
from pdx_proxy.endpoints.events import (
    Cause,
    EventSink,
    FailedHandoff,
    HandedOver,
    HealthCheckRequest,
    LostHandoff,
    NotReady,
    SlowHandoff,
    Suspect,
)
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.attribution import Culprit, attribute
from pdx_proxy.engines.leg_observer import LegObserver
from pdx_proxy.engines.outlier_detection import OutlierDetector
from pdx_proxy.http.upstream.failures import (
    BadAnswer,
    ClosedConnection,
    ConnectTimeout,
    DeadlineExceeded,
    EngineFailure,
    EngineUnready,
    Reason,
    Unready,
)

_FULL: Final = 503
_CHECK_PERIOD_SECONDS: Final = 1.0
"""Between two requests of one worker for a health check of one endpoint."""


class EndpointObserver(LegObserver):
    """One worker's view of how endpoints behave. It alone sends events of endpoints to the control side."""

    __slots__ = (
        "_broken",
        "_checked",
        "_failed_with",
        "_failing",
        "_handoffs",
        "_load",
        "_lost",
        "_notify",
        "_outliers",
        "_watched",
    )

    def __init__(self, load: Load, outliers: OutlierDetector, notify: EventSink) -> None:
        """`outliers` counts errors of engines. Failed hand-offs of P's are counted with the same limit."""
        self._load = load
        self._outliers = outliers
        self._broken = OutlierDetector(outliers.limit, Cause.CONSECUTIVE_ERRORS, "answers that broke off")
        """Counted apart: the first event of a stream is a success that resets the other errors."""
        self._handoffs = OutlierDetector(outliers.limit, Cause.FAILED_HANDOFFS, "failed hand-offs")
        self._notify = notify
        self._lost: set[Start] = set()
        """Endpoints that were reported as lost or not ready. One report is enough, and all requests fail there."""
        self._checked: dict[Start, float] = {}
        """When a health check of an endpoint was last requested."""
        self._failed_with: dict[Start, Start] = {}
        """The P of the last failed hand-off of each D."""
        self._failing: set[Start] = set()
        """P's whose last hand-off failed."""
        self._watched: frozenset[Pairing] = frozenset()
        """Pairs that will be suspended soon unless a hand-off succeeds."""

    def succeeded(self, endpoint: Endpoint) -> None:
        if self._outliers.counts:
            self._outliers.succeeded(endpoint)

    def completed(self, endpoint: Endpoint) -> None:
        if self._broken.counts:
            self._broken.succeeded(endpoint)

    def counted(self, reservation: Reservation) -> None:
        reservation.answered(self._load.clock())

    def failed(self, endpoint: Endpoint, detail: str) -> None:
        suspect = self._outliers.failed(endpoint, detail)
        if suspect is not None:
            self._notify(suspect)

    def busy(self, endpoint: Endpoint, seconds: float) -> None:
        self._load.back_off(endpoint, seconds)

    def unready(self, endpoint: Endpoint, failure: EngineUnready) -> None:
        start = endpoint.start
        if start not in self._lost:
            self._lost.add(start)
            self._notify(NotReady(*start, failure.detail, failure.why is Unready.RETIRED))

    def suspect(self, endpoint: Endpoint, failure: EngineFailure) -> None:
        """The endpoint may have died or restarted.

        A wait that was too long or a connection that the engine closed shows that of no engine: it is checked. Closed
        connections also count as errors. The gateway's own limits show nothing either.
        """
        if failure.local:
            return
        start = endpoint.start
        if isinstance(failure, DeadlineExceeded | ConnectTimeout):
            self.check(endpoint)
        elif isinstance(failure, ClosedConnection):
            suspect = self._broken.failed(endpoint, failure.detail)
            if suspect is not None:
                self._notify(suspect)
            self.check(endpoint)
        elif start not in self._lost:
            self._lost.add(start)
            self._notify(Suspect(*start, str(failure)))

    def check(self, endpoint: Endpoint) -> None:
        """Request a health check of the endpoint."""
        start, now = endpoint.start, self._load.clock()
        last = self._checked.get(start)
        if start not in self._lost and (last is None or now - last >= _CHECK_PERIOD_SECONDS):
            self._checked[start] = now
            self._notify(HealthCheckRequest(*start))

    def lost_handoff(self, decode: Endpoint) -> None:
        """The D waits for a push that never comes."""
        self._notify(LostHandoff(decode.name))

    def handed_over(self, prefill: Endpoint, decode: Endpoint, *, late: bool = False) -> None:
        """D has the P's KV. `late`: it got it possibly long ago, which shows nothing about the pair now."""
        if not late and self._watched and (pair := pairing(prefill, decode)) in self._watched:
            self._watched -= {pair}
            self._notify(HandedOver(pair))
        if self._failing:
            self._failing.discard(prefill.start)
            self._handoffs.succeeded(prefill)

    def served_whole(self, pair: Pairing) -> None:
        """One engine has answered a whole request whose hand-off failed within this pair."""
        self._notify(FailedHandoff(pair))

    def slow_handoff(self, pair: Pairing) -> None:
        """P finished long ago, and D has not answered."""
        self._notify(SlowHandoff(pair))

    def handoff_failed(self, prefill: Endpoint, failure: EngineFailure) -> None:
        """A hand-off of the P failed, and its D did not cause it."""
        if failure.local:
            return
        suspect = self._handoffs.failed(prefill, str(failure))
        if suspect is not None:
            self._notify(suspect)
        self.check(prefill)

    def answered_error(self, endpoint: Endpoint, failure: EngineFailure) -> None:
        """A request failed at the endpoint. Errors are counted, but not the 503 of a full engine."""
        if not isinstance(failure, BadAnswer):
            self.suspect(endpoint, failure)
        elif failure.status != _FULL or failure.reason is not Reason.STATUS:
            self.failed(endpoint, failure.detail)

    def prefill_failed(self, prefill: Endpoint, failure: EngineFailure) -> None:
        """P's leg of a hand-off failed."""
        if isinstance(failure, BadAnswer) and failure.reason is Reason.STATUS:
            self.answered_error(prefill, failure)
        else:
            self.suspect(prefill, failure)

    def handoff_answered_error(self, prefill: Endpoint, decode: Endpoint, failure: EngineFailure) -> None:
        """D's leg of a hand-off failed: count what D has answered, and attribute the failure."""
        if isinstance(failure, BadAnswer):
            self.answered_error(decode, failure)
        self.decode_failed(prefill, decode, failure)

    def decode_failed(self, prefill: Endpoint, decode: Endpoint, failure: EngineFailure) -> None:
        """D's leg of a hand-off failed. Attribute it to P, D, or neither.

        An error of D that is its first after a success counts against P too. Further ones with the same P do not count
        against D unless P has handed over to another D meanwhile. So a P whose KV cannot be used ejects no D, and a D
        that fails ejects no P.
        """
        culprit = attribute(failure)
        if culprit is Culprit.DECODE:
            self.suspect(decode, failure)
        elif culprit is Culprit.EITHER:
            start, peer = decode.start, prefill.start
            same = self._failed_with.get(start) == peer and peer in self._failing
            if same and self._outliers.count(decode) > 1:
                self._outliers.forgive(decode)
            self._failed_with[start] = peer
            self._failing.add(peer)
            if self._outliers.count(decode) <= 1:
                self.handoff_failed(prefill, failure)

    def apply(self, snapshot: Snapshot) -> None:
        """Forget endpoints that are gone and generations that are over."""
        self._watched = snapshot.watched
        counts = self._outliers.counts or self._handoffs.counts or self._broken.counts
        if not (counts or self._lost or self._failing or self._checked or self._failed_with):
            return
        starts = {e.start for e in snapshot.everything}
        self._outliers.keep(starts)
        self._broken.keep(starts)
        self._handoffs.keep(starts)
        self._lost &= starts
        self._failing &= starts
        if self._checked:
            self._checked = {start: at for start, at in self._checked.items() if start in starts}
        if self._failed_with:
            self._failed_with = {start: peer for start, peer in self._failed_with.items() if start in starts}
