"""Reports of legs and hand-offs: counted as load, checked for consecutive errors, sent to the control side."""

from pdx_proxy.balancing.load import Load
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.events import Cause, EventSink, LostHandoff, Suspect
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.attribution import Culprit, attribute
from pdx_proxy.engines.leg import LegObserver
from pdx_proxy.engines.outlier_detection import OutlierDetector
from pdx_proxy.http.upstream.failures import DeadlineExceeded, EngineFailure


class EndpointObserver(LegObserver):
    """One worker's view of how endpoints behave. It alone sends events of endpoints to the control side."""

    __slots__ = ("_load", "_notify", "_outliers")

    def __init__(self, load: Load, outliers: OutlierDetector, notify: EventSink) -> None:
        self._load = load
        self._outliers = outliers
        self._notify = notify

    def acquire(self, endpoint: Endpoint) -> None:
        self._load.acquire(endpoint)

    def release(self, endpoint: Endpoint) -> None:
        self._load.release(endpoint)

    def succeeded(self, endpoint: Endpoint) -> None:
        if self._outliers.counts:
            self._outliers.succeeded(endpoint)

    def failed(self, endpoint: Endpoint, detail: str) -> None:
        suspect = self._outliers.failed(endpoint, detail)
        if suspect is not None:
            self._notify(suspect)

    def suspect(self, endpoint: Endpoint, why: EngineFailure | str) -> None:
        """The endpoint may have died, restarted or hung: it must be warmed up again."""
        cause = Cause.TIMEOUT if isinstance(why, DeadlineExceeded) else Cause.LOST
        self._notify(Suspect(endpoint.name, endpoint.generation, str(why), cause))

    def lost_handoff(self, decode: Endpoint) -> None:
        """The D waits for a push that never comes."""
        self._notify(LostHandoff(decode.name))

    def decode_failed(self, snapshot: Snapshot, prefill: Endpoint, decode: Endpoint, failure: EngineFailure) -> None:
        """D's leg of a hand-off failed: suspect the engine that the failure points to."""
        culprit = attribute(failure)
        if culprit is Culprit.DECODE:
            self.suspect(decode, failure)
        elif culprit is Culprit.PREFILL:
            if all(e.name != prefill.name or e.generation != prefill.generation for e in snapshot.prefill):
                self._outliers.forgive(decode)  # P has been ejected before, so D's error is not its own
            self.suspect(prefill, f"its hand-off failed at {failure}")

    def apply(self, snapshot: Snapshot) -> None:
        """Forget endpoints that are gone and generations that are over."""
        if self._outliers.counts:
            self._outliers.keep({(e.name, e.generation) for e in snapshot.everything})
