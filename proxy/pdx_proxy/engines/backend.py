"""What serving a request needs of the engines' side: endpoints, connections, legs in flight, ids."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from pdx_proxy.admission.retry_budget import RetryBudget
from pdx_proxy.balancing.chooser import Chooser
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.slow_start import effective_loads
from pdx_proxy.config.settings import Deadlines, Settings
from pdx_proxy.endpoints.events import Cause, EventSink, LostHandoff, Suspect
from pdx_proxy.endpoints.snapshot import Endpoint, Snapshot, pairing
from pdx_proxy.engines.call import Call
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.observer import EndpointObserver
from pdx_proxy.engines.outlier_detection import OutlierDetector
from pdx_proxy.http.upstream.connection_pool import ConnectionPool
from pdx_proxy.http.upstream.failures import DeadlineExceeded, EngineFailure
from pdx_proxy.telemetry.counters import Counters, Phase

_TO_PREFILL: Final = Phase.TO_PREFILL.value


@dataclass(slots=True)
class Backend:
    """One worker's view of the engines. It owns the snapshot in force, the pool, the load and the counters."""

    settings: Settings
    pool: ConnectionPool
    new_id: Callable[[], str]
    """A fresh id for an engine to know a request by."""
    clock: Callable[[], float]
    """Seconds, monotonic."""
    notify: EventSink
    """Told what happens to endpoints: the control side."""
    outliers: OutlierDetector
    load: Load = field(default_factory=Load)
    counters: Counters = field(default_factory=Counters)
    snapshot: Snapshot = field(default_factory=Snapshot)
    handshaken: set[tuple[str, int, str, int]] = field(default_factory=set)
    """Pairs that have exchanged KV in this start of both."""
    chooser: Chooser = field(init=False)
    budget: RetryBudget = field(init=False)
    _observer: EndpointObserver = field(init=False)

    def __post_init__(self) -> None:
        self.chooser = Chooser(self.settings.choosing, self.load.of, self.counters)
        self.budget = RetryBudget(self.settings.retries, self.settings.workers)
        self._observer = EndpointObserver(self.load, self.outliers)

    @property
    def deadlines(self) -> Deadlines:
        """How long each wait may take."""
        return self.settings.deadlines

    def leg(self, endpoint: Endpoint, deadline: float = inf) -> Leg:
        """A leg at the endpoint, counted from now on; at `deadline`, in the loop's time, its request expires."""
        return Leg(self.pool, self._observer, endpoint, deadline)

    def send(self, leg: Leg, call: Call, body: bytes, request_id: str, method: str = "POST") -> None:
        """Send a leg of the request under this id, and note it."""
        request = call.request
        leg.send(method, request.path, (*request.headers, ("X-Request-Id", request_id)), body)
        call.timeline.legs.append((leg.endpoint.name, request_id))

    def send_prefill(self, leg: Leg, call: Call, body: bytes, request_id: str) -> None:
        """The same to a P, whose time counts from now on."""
        self.send(leg, call, body, request_id)
        timeline, now = call.timeline, self.clock()
        if not timeline.sent:
            timeline.to_prefill = now - timeline.read
            self.counters.phases[_TO_PREFILL].observe(timeline.to_prefill)
        timeline.sent = now

    def suspect(self, endpoint: Endpoint, why: EngineFailure | str) -> None:
        """The endpoint may have died, restarted or hung: it is to be warmed anew."""
        cause = Cause.HUNG if isinstance(why, DeadlineExceeded) else Cause.LOST
        self.notify(Suspect(endpoint.name, endpoint.start, str(why), cause))

    def lost(self, decode: Endpoint) -> None:
        """A D waits for a push that never comes."""
        self.notify(LostHandoff(decode.name))

    def apply(self, snapshot: Snapshot) -> None:
        """Take a new view of the endpoints; what was learnt of starts that are over, and who is gone, is forgotten."""
        starts = {(e.name, e.start) for e in snapshot.everything}
        self.snapshot = snapshot
        self.chooser.apply(snapshot)
        self.handshaken = {key for key in self.handshaken if {key[:2], key[2:]} <= starts} | set(snapshot.handshaken)
        self.outliers.keep(starts)
        self.load.effective_loads = effective_loads(snapshot, self.settings.health.slow_start_seconds, self.clock())
        self.pool.keep({e.address for e in snapshot.everything}, self.settings.gone_seconds)

    def may_retry(self) -> bool:
        """Whether the budget allows one more attempt; counts either way."""
        if self.budget.take(self.clock()):
            return True
        self.counters.retries_refused += 1
        return False

    def mark_handshake(self, prefill: Endpoint, decode: Endpoint) -> None:
        """KV has moved between the two."""
        self.handshaken.add(pairing(prefill, decode))

    def has_handshake(self, prefill: Endpoint, decode: Endpoint) -> bool:
        """Whether KV has moved between the two in this start of both."""
        return pairing(prefill, decode) in self.handshaken
