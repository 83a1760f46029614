"""D's in the simulated gateway: `pdx_proxy.balancing.decode`, one state for each gateway, over the simulated engines.

A stream's tokens are counted as the gateway counts the pieces that it relays. The gateway also learns how long a
hand-off takes besides the prefill; here that counts as nothing, so D prefills a little more rarely than in truth.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final

from benchmarks.goodput.engine import Engine
from benchmarks.goodput.expected_wait import ExpectedWait, prompt_blocks
from benchmarks.goodput.gateway import Select, Stateless
from benchmarks.goodput.traces import Request
from pdx_proxy.balancing.decode.balancer import DecodeBalancer
from pdx_proxy.balancing.decode.placement import Place, Targets
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.prefill.backlog import Reservation
from pdx_proxy.balancing.prefill.balancer import PrefillBalancer
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.payload.body import Body
from pdx_proxy.payload.features import PromptFeatures
from pdx_sim.core.scheduler import Work

_NO_SLO: Final = Targets()


class _Stream:
    """A sequence that has generated its first token, as the gateway sees its stream."""

    __slots__ = ("_engine", "_work", "now", "source")

    def __init__(self, engine: Engine, source: str, work: Work) -> None:
        self._engine = engine
        self._work = work
        self.source = source
        self.now = 0.0

    @property
    def relayed_chunks(self) -> int:
        """Its tokens so far."""
        return self._engine.produced(self._work, self.now)

    @property
    def paused(self) -> bool:
        """Clients are fast."""
        return False


class LeastItl(Stateless):
    """The default for D's. With an SLO, D's also prefill."""

    def __init__(self, prefills: ExpectedWait, slo: Targets = _NO_SLO) -> None:
        """`prefills`: the same gateway's policy for P's, whose state has the backlog of D's too."""
        self._prefills = prefills
        self._slo = slo
        self._streams: dict[Work, _Stream] = {}
        self._blocks: tuple[int, Body] = (-1, _request(None))
        self._legs: dict[int, Reservation] = {}

    def bind(self, load: Load, snapshot: Snapshot, engines: Sequence[Engine]) -> None:
        """See `Choosing`."""
        self._load = load
        self._snapshot = snapshot
        self._engines = {e.name: engine for e, engine in zip(snapshot.everything, engines, strict=True)}
        prefills = PrefillBalancer(load)
        prefills.expected = self._prefills.state
        self._balancer = DecodeBalancer(load, prefills, self._slo)
        self._balancer.apply(snapshot, LoadReports())

    def select(self, request: Request, now: float) -> Select:
        """See `Choosing`; likewise the others."""
        return partial(self._balancer.choose, self._read(request))

    def polled(self, reports: LoadReports, now: float) -> dict[str, float]:
        """Learn from the streams."""
        self._balancer.apply_load(self._snapshot, reports, self._open_streams(now))
        return self._balancer.batch_limits()

    def place(
        self, request: Request, waited: float, avoid: Collection[str], now: float
    ) -> tuple[Endpoint, Place] | None:
        """Decide whether a D prefills."""
        if not self._slo.places:
            return None
        return self._balancer.place(self._snapshot, self._read(request), waited, avoid)

    def sent_split(self, request: Request, endpoint: Endpoint) -> None:
        """D gets the KV. No engine refuses a request here."""
        self._balancer.sent_split(endpoint, self._read(request)).answered(self._load.clock())

    def sent_whole(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """D prefills."""
        if self._slo.places:
            leg = self._prefills.state.sent(self._prefills.state.engine(endpoint.name), prompt_blocks(request), now)
            self._legs[request.index] = self._balancer.sent_whole(endpoint, leg)

    def answered(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """D has its first token."""
        if request.index in self._legs:
            self._legs.pop(request.index).answered(now)

    def _open_streams(self, now: float) -> Iterable[_Stream]:
        streams: dict[Work, _Stream] = {}
        for endpoint in self._snapshot.decode:
            engine = self._engines[endpoint.name]
            for work in engine.scheduler.running:
                if work.produced:
                    streams[work] = self._streams.get(work) or _Stream(engine, endpoint.name, work)
                    streams[work].now = now
        self._streams = streams
        return streams.values()

    def _read(self, request: Request) -> Body:
        """The request as the gateway has it, made once."""
        if self._blocks[0] != request.index:
            self._blocks = request.index, _request(request)
        return self._blocks[1]


def _request(request: Request | None) -> Body:
    features = PromptFeatures() if request is None else PromptFeatures(blocks=prompt_blocks(request))
    return Body(features=features)
