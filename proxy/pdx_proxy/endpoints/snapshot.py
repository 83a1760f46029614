"""What the gateway knows of engines: an immutable snapshot, swapped whole."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from typing import Final

from pdx_api.connectors import family_of
from pdx_api.connectors.families import Identity, Push
from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Address, EndpointSpec

NO_SLOT: Final = -1
_RANK_HEADER: Final = "X-data-parallel-rank"
_OF_SPEC: Final = ("address", "connector", "order", "revision", "role")


class State(StrEnum):
    """Whether an endpoint may be picked: a warm one, or a suspect one when none that answers clients is warm."""

    COLD = "Cold"
    WARMING = "Warming"
    WARM = "Warm"
    SUSPECT = "Suspect"
    """It was warm until it failed, other than by a deadline, and has not failed a warm-up since."""
    NOT_READY = "NotReady"
    """Its pod is not Ready."""
    LEAVING = "Leaving"
    """Its pod is being deleted."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine as the gateway sees it now."""

    spec: EndpointSpec
    """What is known of it from outside; what is asked for with every request stands below as well."""
    warmth: State = State.COLD
    """What warm-up has come to: Cold, Warming, Warm, Suspect. It stays while the pod is not Ready for a moment."""
    identity: Identity | None = None
    """How a decode engine addresses it; known for a warm P whose family needs it."""
    start: int = 0
    """Counts the warm-ups: what was learnt of one start says nothing of the next."""
    reason: str | None = None
    """Why it is not warm."""
    warm_since: float = 0.0
    """When its last warm-up succeeded, in seconds of the gateway's clock."""
    ejections: int = 0
    """Times in a row that it was left out for failures, each soon after a warm-up."""
    lost: int = 0
    """Hand-offs that this D lost since the engine started: their blocks stay held."""
    slot: int = NO_SLOT
    """Where the workers count its legs together."""
    name: str = field(init=False, repr=False, compare=False)
    """Unique name."""
    host: str = field(init=False, repr=False, compare=False)
    """What requests to it name as their host."""
    pin: tuple[tuple[str, str], ...] = field(init=False, repr=False, compare=False)
    """Headers that lead a request to its data-parallel rank; mostly none."""
    seed: int = field(init=False, repr=False, compare=False)
    """A hash of its name, 32 bits and odd: the same in every gateway."""
    address: Address = field(init=False, repr=False, compare=False)
    """Where its HTTP API is."""
    role: Role = field(init=False, repr=False, compare=False)
    """What it does."""
    revision: str = field(init=False, repr=False, compare=False)
    """What it may pair with."""
    connector: str = field(init=False, repr=False, compare=False)
    """Name of its KV connector."""
    order: Order = field(init=False, repr=False, compare=False)
    """The order it is wired for."""

    def __post_init__(self) -> None:
        rank = self.spec.rank
        object.__setattr__(self, "pin", () if rank is None else ((_RANK_HEADER, str(rank)),))
        object.__setattr__(self, "name", self.spec.name)
        object.__setattr__(self, "seed", int.from_bytes(blake2b(self.spec.name.encode(), digest_size=4).digest()) | 1)
        object.__setattr__(self, "host", str(self.spec.address))
        for name in _OF_SPEC:
            object.__setattr__(self, name, getattr(self.spec, name))

    @property
    def state(self) -> State:
        """What keeps it from being picked, or Warm."""
        if self.spec.leaving:
            return State.LEAVING
        return self.warmth if self.spec.ready else State.NOT_READY

    @property
    def warm(self) -> bool:
        """Whether it may be picked."""
        return self.state is State.WARM

    @property
    def wants_warmth(self) -> bool:
        """Whether it is to be warmed now."""
        return self.warmth is not State.WARM and self.spec.ready and not self.spec.leaving


def by_rank(specs: Iterable[EndpointSpec]) -> Iterable[EndpointSpec]:
    """The engines, each rank of a P by itself where D is told beforehand which one will push.

    A rank has an identity of its own, so a leg that another rank takes would leave D waiting. In the other families P's
    answer names its rank, and everywhere the D that gets the request is as good as any: the engine balances those.
    """
    for spec in specs:
        ranked = spec.ranks > 1 and spec.role is Role.PREFILL
        if ranked and isinstance(family_of(spec.connector, spec.order, spec.protocol), Push):
            yield from (replace(spec, rank=rank) for rank in range(spec.ranks))
        else:
            yield spec


@dataclass(frozen=True, slots=True)
class Measure:
    """What an engine has said of itself, summed over its data-parallel ranks."""

    running: float
    """Requests being computed."""
    waiting: float
    """Requests in its queue."""
    kv_use: float
    """Share of its KV blocks in use, 0 to 1; the average of the ranks."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The engines' own numbers, none older than `engine_load.OLDEST_SECONDS`."""

    round: int = 0
    """Counts what is published: equal numbers of another round are news."""
    engines: Mapping[str, Measure] = field(default_factory=dict)
    """By name of the endpoint. Empty unless a policy asks for them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All endpoints at one moment."""

    prefill: tuple[Endpoint, ...] = ()
    """The warm prefill engines."""
    decode: tuple[Endpoint, ...] = ()
    """The warm engines that answer clients: decode, or aggregated. While there is none, suspect ones."""
    complete: tuple[Endpoint, ...] = ()
    """Those of `decode` that leave nothing of their pool idle: aggregated, or with a warm P of their revision."""
    peers: Mapping[str, tuple[Endpoint, ...]] = field(default_factory=dict)
    """The warm prefill engines by revision. None while those of `decode` are suspect."""
    everything: tuple[Endpoint, ...] = ()
    handshaken: frozenset[tuple[str, int, str, int]] = frozenset()
    """Pairs that warm-up has made exchange KV: see `pairing`."""
    measured: Measured = field(default_factory=Measured)

    @classmethod
    def of(
        cls, endpoints: Iterable[Endpoint], handshaken: frozenset[tuple[str, int, str, int]] = frozenset()
    ) -> "Snapshot":
        """Sort endpoints by what they may be picked for."""
        everything = tuple(endpoints)
        warm = [e for e in everything if e.warm]
        decode = tuple(e for e in warm if e.role is not Role.PREFILL)
        if not decode:
            # One lost connection of the last engine says little, so it is asked on while it is warmed. Whole requests
            # only: it may have restarted, and its very first work must not be decoding over KV from outside.
            decode = tuple(e for e in everything if e.state is State.SUSPECT and e.role is not Role.PREFILL)
        prefill = tuple(e for e in warm if e.role is Role.PREFILL)
        by_revision = sorted(prefill if decode and decode[0].warm else (), key=attrgetter("revision"))
        peers = {revision: tuple(group) for revision, group in groupby(by_revision, key=attrgetter("revision"))}
        return cls(
            prefill=prefill,
            decode=decode,
            complete=tuple(d for d in decode if d.role is Role.AGGREGATED or d.revision in peers),
            peers=peers,
            everything=everything,
            handshaken=handshaken,
        )


def pairing(prefill: Endpoint, decode: Endpoint) -> tuple[str, int, str, int]:
    """Key of a pair in one start of each."""
    return (prefill.name, prefill.start, decode.name, decode.start)
