"""What a worker needs, in addition to the engines, to serve requests: choice, retry budget, counters, handshakes."""

from dataclasses import dataclass, field
from math import inf
from typing import Final

from pdx_proxy.admission.retry_budget import RetryBudget
from pdx_proxy.balancing.chooser import Chooser
from pdx_proxy.balancing.leg_limits import leg_limits
from pdx_proxy.balancing.load import Slot
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.prefill.shared_log import SharedLog
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.death_checks import DeathChecks
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.handoff.handshakes import Handshakes
from pdx_proxy.handoff.pull_watch import PullWatch
from pdx_proxy.handoff.request import Request
from pdx_proxy.http.upstream.failures import EngineBusy, EngineUnready
from pdx_proxy.payload.body import LegBody, identified
from pdx_proxy.telemetry.counters import Counters, Phase
from pdx_proxy.telemetry.timeline import LegRecord
from pdx_proxy.telemetry.tracing import Tracing

_TO_PREFILL: Final = Phase.TO_PREFILL.value


@dataclass(slots=True)
class WorkerState:
    """One worker's serving side. The control side has none: its probes are neither balanced nor counted."""

    engines: Engines
    log: SharedLog | None = None
    """What the workers of a gateway share; None if there is only one."""
    tracing: Tracing | None = None
    """None: no request has a trace."""
    counters: Counters = field(default_factory=Counters)
    handshakes: Handshakes = field(default_factory=Handshakes)
    """Pairs that have exchanged KV in this generation of both."""
    load_reports: LoadReports = field(default_factory=LoadReports)
    """The engines' latest load reports."""
    death_checks: DeathChecks = field(init=False)
    pulls: PullWatch = field(init=False)
    chooser: Chooser = field(init=False)
    budget: RetryBudget = field(init=False)

    def __post_init__(self) -> None:
        settings = self.engines.settings
        self.death_checks = DeathChecks(self.engines)
        self.pulls = PullWatch(self.engines)
        self.chooser = Chooser(settings.choosing, self.engines.load, self.counters, self.log, settings.slo)
        self.budget = RetryBudget(settings.retries, settings.workers)

    def apply(self, snapshot: Snapshot) -> None:
        """Put a snapshot in force and forget pairs of engines that are gone or have restarted."""
        self.handshakes.apply({e.start for e in snapshot.everything})
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
        batches = self.chooser.decodes.batch_limits()
        load.limit(leg_limits(engines.snapshot, self.load_reports, limits, load.legs_at, batches))
        load.lend(
            engines.snapshot.peers if self.chooser.expects_prefill else {}, limits.max_in_flight_per_prefill or inf
        )

    def prefill_leg(self, slot: Slot, request: Request, *, outlives: bool = False) -> Leg:
        """Create a leg whose engine prefills the prompt: of a P, or of an aggregated engine.

        `outlives`: it goes on when the request expires.
        """
        leg = self.engines.leg_in(slot, inf if outlives else request.deadline)
        leg.judged = True
        leg.reservation = self.chooser.sent(slot.endpoint, request.body)
        return leg

    def decode_leg(self, slot: Slot, request: Request) -> Leg:
        """Create a leg whose engine gets the prompt's KV from another one."""
        leg = self.engines.leg_in(slot, request.deadline)
        leg.judged = True
        leg.reservation = self.chooser.sent_split(slot.endpoint, request.body)
        return leg

    def send(
        self, leg: Leg, request: Request, body: LegBody, request_id: str, method: str = "POST", *, once: bool = False
    ) -> LegRecord:
        """Send a leg under this request ID and record it in the timeline. `once`: as in `Leg.send`."""
        timeline, endpoint = request.timeline, leg.endpoint
        if request.body.api.id_in_body:
            body = identified(body, request_id)
        now = 0.0 if self.tracing is None else self.engines.clock()
        record = LegRecord(endpoint.name, endpoint.address, request_id, timeline.attempt, now)
        headers = (*request.headers, ("X-Request-Id", request_id))
        trace = timeline.trace
        if trace is not None and trace.sampled and self.tracing is not None:
            record.span_id = self.tracing.sampler.new_span()
            headers = (*headers, *trace.headers(record.span_id))
        leg.send(method, request.path, headers, body, once=once)
        timeline.legs.append(record)
        return record

    def send_prefill(self, leg: Leg, request: Request, body: LegBody, request_id: str) -> LegRecord:
        """Send a leg to a P. The time of the prefill starts."""
        record = self.send(leg, request, body, request_id)
        record.prefill = True
        timeline, now = request.timeline, self.engines.clock()
        if not timeline.sent:
            timeline.to_prefill = now - timeline.read
            self.counters.phases[_TO_PREFILL].observe(timeline.to_prefill)
        timeline.sent = now
        return record

    def may_retry(self, client: str = "", *, is_crowd: bool = True) -> bool:
        """Whether the retry budget allows the client one more attempt. Counts the retry or the refusal."""
        if self.budget.take(self.engines.clock(), client, is_crowd=is_crowd):
            return True
        self.counters.retries_refused += 1
        return False

    def back_off(self, endpoint: Endpoint, failure: EngineBusy, request: Request) -> None:
        """The engine accepts no request for some time, or none of this client, whose credential it has received."""
        if isinstance(failure, EngineUnready):
            self.engines.observer.unready(endpoint, failure)
        self.engines.load.back_off(endpoint, failure.seconds, 0 if failure.by_engine else request.credential)

    def mark_handshake(self, prefill: Endpoint, decode: Endpoint) -> None:
        """Record that KV has moved between the two."""
        pair = prefill.start + decode.start
        if pair not in self.handshakes.pairs:
            self.handshakes.add(pair)

    def has_handshake(self, prefill: Endpoint, decode: Endpoint) -> bool:
        """Whether KV has moved between the two in this generation of both."""
        return prefill.start + decode.start in self.handshakes.pairs
