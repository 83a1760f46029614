"""The state of all endpoints. Its methods change the state and return the actions that follow; it performs none."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from pdx_api.connectors.families import Identity
from pdx_api.names import Role
from pdx_proxy.balancing.shared_load import LoadTable
from pdx_proxy.config.settings import EndpointSpec
from pdx_proxy.endpoints.endpoint import NO_SLOT, Endpoint, Names, Pairing, State, by_rank, exchanges, pairing
from pdx_proxy.endpoints.events import Cause, EndpointEvent, HealthCheckRequest, LostHandoff, NotReady, Suspect
from pdx_proxy.endpoints.models import latest, read_models
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.endpoints.version import read_version
from pdx_proxy.health import ejection

_UNREADY_PAUSE: Final = 0.2
"""Seconds before the first warm-up of an endpoint that is not ready."""


@dataclass(frozen=True, slots=True)
class Actions:
    """What follows from a change of the registry. `EndpointManager` performs it, in the order of the fields."""

    cancel: tuple[str, ...] = ()
    """Endpoints whose warm-up must end."""
    publish: bool = False
    """The snapshot has changed."""
    wake_prefills: bool = False
    """A D may have become available for P's that wait for one."""
    start: tuple[str, ...] = ()
    """Endpoints whose warm-up must start, unless it runs."""
    pause: float = 0.0
    """Seconds before these warm-ups start."""
    check: Endpoint | None = None
    """The endpoint that must answer a health check."""


class EndpointRegistry:
    """Owner of the endpoints' state and of the pairs that have exchanged KV during warm-up."""

    def __init__(
        self, specs: Iterable[EndpointSpec], clock: Callable[[], float], table: LoadTable | None = None
    ) -> None:
        """`table` assigns the slots in which several workers count an endpoint's legs together."""
        self._clock = clock
        self._table = table
        self._endpoints = {spec.name: self._create(spec) for spec in by_rank(specs)}
        self._handshaken: frozenset[Pairing] = frozenset()
        self._suspended: frozenset[Names] = frozenset()
        self._watched: frozenset[Names] = frozenset()
        self._cursor = 0
        self.ejections = dict.fromkeys(Cause, 0)
        """Count of ejections by cause."""

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot in force."""
        everything = self._endpoints.values()
        suspended, watched = self._pairings(self._suspended), self._pairings(self._watched)
        return Snapshot.of(everything, self._handshaken, suspended | _strangers(everything), watched)

    def endpoint(self, name: str) -> Endpoint:
        """Return an endpoint; raises KeyError if it is gone."""
        return self._endpoints[name]

    def start(self) -> Actions:
        """Return the warm-ups to start at the beginning."""
        return Actions(start=tuple(name for name, e in self._endpoints.items() if e.needs_warm_up))

    def update(self, specs: Iterable[EndpointSpec]) -> Actions:
        """Replace the set of engines: some may be new, changed, restarted or gone."""
        desired = {spec.name: spec for spec in by_rank(specs)}
        before, after = self._endpoints, {name: self._updated(spec) for name, spec in desired.items()}
        changed = [name for name, endpoint in after.items() if before.get(name) is not endpoint]
        gone = before.keys() - desired.keys()
        if not changed and not gone:
            return Actions()
        restarted = {name for name in changed if name in before and _is_other(before[name].spec, desired[name])}
        if self._table is not None:
            for name in gone:
                self._table.take_back(name)
        self._endpoints = after
        self._drop_handshakes()
        start = tuple(name for name in changed if after[name].needs_warm_up)
        cancel = gone | restarted | (set(changed) - set(start))
        return Actions(cancel=tuple(cancel), publish=True, wake_prefills=True, start=start)

    def on_event(self, event: EndpointEvent) -> Actions:
        """Apply what a worker reports about an endpoint, which may be gone by then."""
        endpoint = self._endpoints.get(event.name)
        if endpoint is None:
            return Actions()
        if isinstance(event, HealthCheckRequest):
            return Actions(check=endpoint) if self._is_warm_start(endpoint, event) else Actions()
        if isinstance(event, LostHandoff):
            return self._put(endpoint, lost=endpoint.lost + 1)
        if isinstance(event, NotReady):
            return self._leave_out(endpoint, event) if self._is_warm_start(endpoint, event) else Actions()
        return self._eject(endpoint, event) if self._is_warm_start(endpoint, event) else Actions()

    def set_pairs(self, suspended: frozenset[Names], watched: frozenset[Names]) -> Actions:
        """Replace the pairs that get no hand-off because KV does not move, and those that are watched."""
        changed = (suspended, watched) != (self._suspended, self._watched)
        self._suspended, self._watched = suspended, watched
        return Actions(publish=changed)

    def set_long_queue(self, endpoint: Endpoint, long_queue: bool) -> Actions:
        """The queue of a D is, or is no longer, too long for a push."""
        return self._put(endpoint, long_queue=long_queue)

    def set_models(self, endpoint: Endpoint, page: bytes) -> Actions:
        """Put the models in force that an endpoint reports on a page. Without such a page they stay as they are."""
        models = read_models(page)
        return Actions() if models is None else self._put(endpoint, models=latest(endpoint.models, models))

    def set_version(self, endpoint: Endpoint, page: bytes) -> Actions:
        """Put the version in force that an endpoint reports on a page; none without such a page."""
        return self._put(endpoint, version=read_version(page))

    def next_decode(self, prefill: Endpoint) -> Endpoint | None:
        """Return a warm D that takes KV from the P, each in turn; None if there is none."""
        decodes = [e for e in self._endpoints.values() if e.warm and e.role is Role.DECODE]
        decodes = [d for d in decodes if exchanges(prefill, d)]
        if not decodes:
            return None
        self._cursor += 1
        return decodes[(self._cursor - 1) % len(decodes)]

    def waiting_for_decode(self, prefill: Endpoint) -> Actions:
        """A P is warm but for its hand-off."""
        reason = "waits for a warm decode engine of its revision"
        if any(e.warm and e.role is Role.DECODE and e.revision == prefill.revision for e in self._endpoints.values()):
            reason += f" with vLLM {prefill.version}"
        return self._put(prefill, warm_up_state=State.WARMING, reason=reason)

    def warm_up_failed(self, endpoint: Endpoint, reason: str, *, down: bool) -> Actions:
        """A warm-up failed. An engine that is `down` does not listen, so it starts again with all of its blocks."""
        return self._put(endpoint, warm_up_state=State.COLD, reason=reason, lost=0 if down else endpoint.lost)

    def not_ready(self, endpoint: Endpoint, reason: str, *, retired: bool) -> Actions:
        """An endpoint has refused its warm-up because it is paused, scales or is retired."""
        return self._put(endpoint, warm_up_state=_unready(retired=retired), reason=reason, ejected_by=None)

    def warm_up_succeeded(
        self, endpoint: Endpoint, identity: Identity | None = None, decode: Endpoint | None = None
    ) -> Actions:
        """An endpoint is warm. A P has handed KV over to `decode`."""
        generation = endpoint.generation + 1
        if decode is not None:
            self._handshaken |= {pairing(replace(endpoint, generation=generation), decode)}
        changes: dict[str, Any] = {"reason": None, "warm_since": self._clock(), "generation": generation}
        changes["ejected_by"] = None
        changes["resumes"] = endpoint.resumes + (endpoint.warm_up_state is State.PAUSED)
        if decode is not None:
            changes["identity"] = identity
        actions = self._put(endpoint, warm_up_state=State.WARM, **changes)
        return replace(actions, wake_prefills=endpoint.role is Role.DECODE)

    def _leave_out(self, endpoint: Endpoint, event: NotReady) -> Actions:
        """An endpoint that is not ready is no failure: it is warmed up until it accepts that."""
        actions = self._put(endpoint, warm_up_state=_unready(retired=event.retired), reason=event.reason)
        start = (endpoint.name,) if self._endpoints[endpoint.name].needs_warm_up else ()
        return replace(actions, start=start, pause=_UNREADY_PAUSE)

    def _is_warm_start(self, endpoint: Endpoint, event: Suspect | NotReady | HealthCheckRequest) -> bool:
        """Whether the event is about the endpoint as it is now, and not about an earlier start."""
        return endpoint.warm_up_state is State.WARM and endpoint.generation == event.generation

    def _eject(self, endpoint: Endpoint, suspect: Suspect) -> Actions:
        decision = ejection.decide(endpoint, suspect, self._endpoints.values(), self._clock())
        self.ejections[decision.cause] += 1
        if decision.endpoint is endpoint:
            return Actions()
        self._endpoints[endpoint.name] = decision.endpoint
        self._drop_handshakes()
        start = (endpoint.name,) if decision.endpoint.needs_warm_up else ()
        return Actions(publish=True, start=start, pause=decision.pause)

    def _put(self, endpoint: Endpoint, **changes: Any) -> Actions:
        """Change an endpoint, unless it is gone or has restarted since the caller read `endpoint`."""
        now = self._endpoints.get(endpoint.name)
        if now is None or _is_other(endpoint.spec, now.spec):
            return Actions()
        after = replace(now, **changes)
        if after == now:
            return Actions()
        self._endpoints[endpoint.name] = after
        self._drop_handshakes()
        return Actions(publish=True)

    def _pairings(self, pairs: Iterable[Names]) -> frozenset[Pairing]:
        """The pairs in the present generations."""
        known = self._endpoints
        return frozenset(pairing(known[p], known[d]) for p, d in pairs if p in known and d in known)

    def _drop_handshakes(self) -> None:
        """Forget the pairs of engines that are gone and of earlier generations."""
        current = {e.start for e in self._endpoints.values()}
        self._handshaken = frozenset(key for key in self._handshaken if {key[:2], key[2:]} <= current)

    def _create(self, spec: EndpointSpec) -> Endpoint:
        return Endpoint(spec, slot=self._table.give(spec.name) if self._table else NO_SLOT)

    def _updated(self, spec: EndpointSpec) -> Endpoint:
        """Return the endpoint of a spec: the same object if nothing has changed."""
        endpoint = self._endpoints.get(spec.name)
        if endpoint is None:
            return self._create(spec)
        if _is_other(endpoint.spec, spec):
            return Endpoint(
                spec,
                generation=endpoint.generation,
                resumes=endpoint.resumes,
                reason="has restarted",
                slot=endpoint.slot,
            )
        return endpoint if endpoint.spec == spec else replace(endpoint, spec=spec)


def _strangers(endpoints: Iterable[Endpoint]) -> frozenset[Pairing]:
    """The pairs of one revision whose versions of vLLM exchange no KV."""
    known = [e for e in endpoints if e.wire]
    if len({e.wire for e in known}) < 2:
        return frozenset()
    prefills = [e for e in known if e.role is Role.PREFILL]
    decodes = [e for e in known if e.role is Role.DECODE]
    return frozenset(
        pairing(p, d) for p in prefills for d in decodes if p.revision == d.revision and not exchanges(p, d)
    )


def _unready(*, retired: bool) -> State:
    return State.RETIRED if retired else State.PAUSED


def _is_other(old: EndpointSpec, new: EndpointSpec) -> bool:
    """Whether the specs describe different engines, or different starts of one engine."""
    return replace(old, ready=new.ready, leaving=new.leaving) != new
