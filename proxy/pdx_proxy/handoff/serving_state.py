"""What a worker needs to serve requests besides the engines: choice, retry budget, counters, handshakes."""

from dataclasses import dataclass, field
from math import inf
from typing import Final

from pdx_proxy.admission.retry_budget import RetryBudget
from pdx_proxy.balancing.chooser import Chooser
from pdx_proxy.balancing.leg_limits import leg_limits
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.prefill.shared_log import SharedLog
from pdx_proxy.endpoints.endpoint import Endpoint, pairing
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.engines import Engines
from pdx_proxy.engines.leg import Leg
from pdx_proxy.handoff.call import Call
from pdx_proxy.handoff.handshakes import Handshakes
from pdx_proxy.payload.body import LegBody
from pdx_proxy.payload.request import Request
from pdx_proxy.telemetry.counters import Counters, Phase

_TO_PREFILL: Final = Phase.TO_PREFILL.value


@dataclass(slots=True)
class ServingState:
    """One worker's serving side. The control side has none: its probes are neither balanced nor counted."""

    engines: Engines
    log: SharedLog | None = None
    """What the workers of a gateway share; None if there is only one."""
    counters: Counters = field(default_factory=Counters)
    handshakes: Handshakes = field(default_factory=Handshakes)
    """Pairs that have exchanged KV in this generation of both."""
    load_reports: LoadReports = field(default_factory=LoadReports)
    """The engines' latest load reports."""
    chooser: Chooser = field(init=False)
    budget: RetryBudget = field(init=False)

    def __post_init__(self) -> None:
        settings = self.engines.settings
        self.chooser = Chooser(settings.choosing, self.engines.load, self.counters, self.log)
        self.budget = RetryBudget(settings.retries, settings.workers)

    def apply(self, snapshot: Snapshot) -> None:
        """Put a snapshot in force and forget pairs of engines that are gone or have restarted."""
        self.handshakes.apply({(e.name, e.generation) for e in snapshot.everything})
        for pair in snapshot.handshaken - self.engines.snapshot.handshaken:
            self.handshakes.add(pair)
        self.engines.apply(snapshot)
        self.chooser.apply(snapshot, self.load_reports)
        self._limit_legs()

    def apply_load(self, reports: LoadReports) -> None:
        """Select by these load reports and the legs that are in flight at this moment."""
        self.load_reports = reports
        self.chooser.apply_load(self.engines.snapshot, reports)
        self._limit_legs()

    def _limit_legs(self) -> None:
        engines = self.engines
        load, limits = engines.load, engines.settings.limits
        load.limits = leg_limits(engines.snapshot, self.load_reports, limits, load.legs_at)
        load.lend(engines.snapshot.peers if self.chooser.expects_prefill else {}, limits.in_flight_per_prefill or inf)

    def prefill_leg(self, endpoint: Endpoint, request: Request, deadline: float = inf) -> Leg:
        """Create a leg whose engine prefills the prompt: of a P, or of an aggregated engine."""
        leg = self.engines.leg(endpoint, deadline)
        leg.prefill = self.chooser.sent(endpoint, request)
        return leg

    def send(self, leg: Leg, call: Call, body: LegBody, request_id: str, method: str = "POST") -> None:
        """Send a leg under this request ID and record it in the timeline."""
        request = call.request
        leg.send(method, request.path, (*request.headers, ("X-Request-Id", request_id)), body)
        call.timeline.legs.append((leg.endpoint.name, request_id))

    def send_prefill(self, leg: Leg, call: Call, body: LegBody, request_id: str) -> None:
        """Send a leg to a P. The time of the prefill starts."""
        self.send(leg, call, body, request_id)
        timeline, now = call.timeline, self.engines.clock()
        if not timeline.sent:
            timeline.to_prefill = now - timeline.read
            self.counters.phases[_TO_PREFILL].observe(timeline.to_prefill)
        timeline.sent = now

    def may_retry(self) -> bool:
        """Whether the retry budget allows one more attempt. Counts the retry or the refusal."""
        if self.budget.take(self.engines.clock()):
            return True
        self.counters.retries_refused += 1
        return False

    def mark_handshake(self, prefill: Endpoint, decode: Endpoint) -> None:
        """Record that KV has moved between the two."""
        self.handshakes.add(pairing(prefill, decode))

    def has_handshake(self, prefill: Endpoint, decode: Endpoint) -> bool:
        """Whether KV has moved between the two in this generation of both."""
        return pairing(prefill, decode) in self.handshakes.pairs
