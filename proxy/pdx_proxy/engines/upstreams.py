"""The engines as one process reaches them: endpoints in force, connections, legs in flight, request ids."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import inf

from pdx_proxy.balancing.load import Load, Slot
from pdx_proxy.balancing.slow_start import effective_loads
from pdx_proxy.config.settings import Address, Deadlines, Settings
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.events import EventSink
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.observer import EndpointObserver
from pdx_proxy.engines.outlier_detection import OutlierDetector
from pdx_proxy.http.upstream.connection_pool import ConnectionPool
from pdx_proxy.http.upstream.failures import LostConnection


@dataclass(slots=True)
class Engines:
    """Owner of the snapshot in force, the connections and the load. The control side and every worker have one."""

    settings: Settings
    pool: ConnectionPool
    new_id: Callable[[], str]
    """Returns a fresh request id for an engine."""
    clock: Callable[[], float]
    """Seconds, monotonic."""
    load: Load
    observer: EndpointObserver
    """Receives the reports of legs and hand-offs."""
    snapshot: Snapshot = field(default_factory=Snapshot)
    hung: frozenset[Address] = frozenset()
    """Addresses of engines that are ejected because they do not work on their requests."""

    @property
    def deadlines(self) -> Deadlines:
        """How long each wait may take."""
        return self.settings.deadlines

    def leg(self, endpoint: Endpoint, deadline: float = inf) -> Leg:
        """Create a leg of the gateway's own, in a new slot: it shows nothing about how the endpoint serves clients.

        At `deadline`, in the loop's time, its request expires.
        """
        leg = Leg(self.pool, self.observer, Slot(self.load, endpoint), deadline)
        leg.serves = False
        return leg

    def leg_in(self, slot: Slot, deadline: float = inf) -> Leg:
        """Create a leg that takes over a slot."""
        return Leg(self.pool, self.observer, slot, deadline)

    def apply(self, snapshot: Snapshot) -> None:
        """Put a snapshot in force and forget endpoints that are gone and generations that are over."""
        self.snapshot = snapshot
        self.observer.apply(snapshot)
        groups = (snapshot.decode, *snapshot.peers.values())
        self.load.group({endpoint.name: group for group in groups for endpoint in group})
        self.load.effective_loads = effective_loads(snapshot, self.settings.health.slow_start_seconds, self.clock())
        self.pool.keep({e.address: e.spec.pod for e in snapshot.everything}, self.settings.gone_seconds)
        hung = {e.address: e for e in snapshot.everything if e.hung}
        for address in hung.keys() - self.hung:
            # A request without a stream would wait until its own deadline. Another engine may serve it.
            self.pool.interrupt(address, LostConnection(hung[address].name, hung[address].reason or "hung"))
        self.hung = frozenset(hung)


def create_engines(settings: Settings, notify: EventSink, load: Load | None = None) -> Engines:
    """Create engines on the running loop, with request ids that no other process makes."""
    prefix = os.urandom(8).hex()
    load = load or Load()
    return Engines(
        settings=settings,
        pool=ConnectionPool(idle_seconds=settings.idle_seconds, connect_seconds=settings.deadlines.connect_seconds),
        new_id=map(prefix.__add__, map(str, count(1))).__next__,  # a third of the instructions of a function
        clock=time.perf_counter,
        load=load,
        observer=EndpointObserver(load, OutlierDetector(settings.health.consecutive_errors), notify),
    )
