"""One engine, or one data-parallel rank of it, as the gateway addresses it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final

from pdx_api.connectors import CONNECTORS, family_of
from pdx_api.connectors.families import Family, Identity, Pool, Push
from pdx_api.names import Order, Role
from pdx_api.vllm.versions import abilities, minor
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.events import HUNG, INFERENCE, Cause
from pdx_proxy.endpoints.models import ServedModel

NO_SLOT: Final = -1
_RANK_HEADER: Final = "X-data-parallel-rank"
_OF_SPEC: Final = ("address", "connector", "order", "revision", "role")

Start = tuple[str, int]
"""One start of an engine: the name and the generation of its endpoint."""
_NO_HANDOFF: Final = Pool()
"""The family of an aggregated engine, which has no connector: it keeps nothing for another engine."""
Pairing = tuple[str, int, str, int]
"""A P and a D, each with its generation: see `pairing`."""
Names = tuple[str, str]
"""The names of a P and a D: the pair in all generations."""


class State(StrEnum):
    """Whether an endpoint may be selected. A suspect one is, while no engine that answers clients is warm."""

    COLD = "Cold"
    WARMING = "Warming"
    WARM = "Warm"
    SUSPECT = "Suspect"
    """It was warm until it was ejected, and has not failed a warm-up since."""
    PAUSED = "Paused"
    """It accepts no request for now, by its own answer, and has not failed."""
    RETIRED = "Retired"
    """It is a data-parallel rank that was removed, and accepts no request any more."""
    NOT_READY = "NotReady"
    """Its pod is not Ready."""
    LEAVING = "Leaving"
    """Its pod is being deleted."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine and its state."""

    spec: EndpointSpec
    """What discovery or flags say of it. Fields that every request needs are copied below."""
    warm_up_state: State = State.COLD
    """The result of warm-up: all but NotReady and Leaving. It stays while the pod is not Ready for a moment."""
    identity: Identity | None = None
    """How a D addresses it. Set for a warm P whose family needs it."""
    generation: int = 0
    """Counts successful warm-ups. What is learned in one generation does not hold in the next."""
    reason: str | None = None
    """Why it is not warm."""
    warm_since: float = 0.0
    """When its last warm-up succeeded, in seconds of the gateway's clock."""
    ejections: int = 0
    """Consecutive ejections by inference, each soon after a warm-up."""
    resumes: int = 0
    """How many of its warm-ups ended a pause of the engine, and so followed no failure."""
    ejected_by: Cause | None = None
    """Why it is ejected; None once a warm-up has succeeded."""
    lost: int = 0
    """Hand-offs that this D lost since the engine started. Their blocks are never freed."""
    long_queue: bool = False
    """Whether a request would wait in this D's queue for longer than a push survives. D then gets whole requests."""
    slot: int = NO_SLOT
    """Where the workers count its legs together."""
    models: tuple[ServedModel, ...] = ()
    """What it reports that it serves, LoRA adapters included; empty until its first warm-up."""
    version: str = ""
    """The version of vLLM that it reports; empty until it has reported one."""
    name: str = field(init=False, repr=False, compare=False)
    """Unique name."""
    host: str = field(init=False, repr=False, compare=False)
    """The Host header of requests to it."""
    pin: tuple[tuple[str, str], ...] = field(init=False, repr=False, compare=False)
    """Headers that route a request to its data-parallel rank; mostly none."""
    seed: int = field(init=False, repr=False, compare=False)
    """A hash of its name, 32 bits and odd: the same in every gateway."""
    address: Address = field(init=False, repr=False, compare=False)
    """The address of its HTTP API."""
    role: Role = field(init=False, repr=False, compare=False)
    """Prefill, decode or aggregated."""
    revision: str = field(init=False, repr=False, compare=False)
    """Only engines of one revision pair."""
    connector: str = field(init=False, repr=False, compare=False)
    """Name of its KV connector."""
    order: Order = field(init=False, repr=False, compare=False)
    """The order that it is wired for."""
    family: Family = field(init=False, repr=False, compare=False)
    """How it hands KV over, or receives it."""
    wire: str = field(init=False, repr=False, compare=False)
    """What P and D must have in common beside the revision, to exchange KV; empty: unknown, or nothing."""
    shows_params: bool = field(init=False, repr=False, compare=False)
    """Whether its whole answers may have hand-off parameters. Not sought in engines that report no version of vLLM."""
    streams_params: bool = field(init=False, repr=False, compare=False)
    """The same for the events of its streams."""
    counts_received: bool = field(init=False, repr=False, compare=False)
    """Whether the usage of its answers counts KV that it has pulled as cached."""
    reuses_tokens: bool = field(init=False, repr=False, compare=False)
    """Whether it takes the tokens of a chat from P's answer."""
    longest: int = field(init=False, repr=False, compare=False)
    """The most tokens of a prompt and its answer that each of its models accepts; 0: not reported."""
    start: Start = field(init=False, repr=False, compare=False)
    """Its name and generation. What is learned of one start does not hold for the next."""

    def __post_init__(self) -> None:
        rank = self.spec.rank
        object.__setattr__(self, "pin", () if rank is None else ((_RANK_HEADER, str(rank)),))
        object.__setattr__(self, "name", self.spec.name)
        object.__setattr__(self, "seed", int.from_bytes(blake2b(self.spec.name.encode(), digest_size=4).digest()) | 1)
        object.__setattr__(self, "host", str(self.spec.address))
        for name in _OF_SPEC:
            object.__setattr__(self, name, getattr(self.spec, name))
        object.__setattr__(self, "family", _family_of(self.spec))
        version = minor(self.version)
        object.__setattr__(self, "shows_params", bool(version))
        object.__setattr__(self, "streams_params", bool(version) and abilities(version).null_params)
        object.__setattr__(self, "counts_received", bool(version) and not abilities(version).answers_hits)
        object.__setattr__(self, "reuses_tokens", bool(version) and abilities(version).reuses_tokens)
        object.__setattr__(self, "longest", min((each.longest for each in self.models), default=0))
        object.__setattr__(self, "wire", wire_of(self.spec, self.version))
        object.__setattr__(self, "start", (self.spec.name, self.generation))

    def __reduce__(self) -> tuple[type["Endpoint"], tuple[Any, ...]]:
        """Send the fields that define it to another process. A family contains functions, which cannot be sent."""
        return Endpoint, tuple([getattr(self, each.name) for each in fields(self) if each.init])

    @property
    def state(self) -> State:
        """The result of warm-up, unless its pod prevents that it is selected."""
        if self.spec.leaving:
            return State.LEAVING
        return self.warm_up_state if self.spec.ready else State.NOT_READY

    @property
    def warm(self) -> bool:
        """Whether it may be selected."""
        return self.state is State.WARM

    @property
    def hung(self) -> bool:
        """Whether it was ejected because it does not work on its requests."""
        return self.ejected_by in HUNG

    @property
    def ejected_by_inference(self) -> bool:
        """Whether it was ejected for what requests showed, without evidence about the engine itself."""
        return self.ejected_by in INFERENCE

    @property
    def needs_warm_up(self) -> bool:
        """Whether it must be warmed up."""
        return self.warm_up_state is not State.WARM and self.spec.ready and not self.spec.leaving


def by_rank(specs: Iterable[EndpointSpec]) -> Iterable[EndpointSpec]:
    """Yield the engines; a P of a push family yields each of its data-parallel ranks.

    In push families D must have the identity of the P rank that will write to it, and each rank has its own. In the
    other families P's answer names its rank. The rank of a D does not matter: the engine balances its ranks.
    """
    for spec in specs:
        ranked = spec.ranks > 1 and spec.role is Role.PREFILL
        if ranked and isinstance(_family_of(spec), Push):
            yield from (replace(spec, rank=rank) for rank in range(spec.ranks))
        else:
            yield spec


def wire_of(spec: EndpointSpec, version: str) -> str:
    """Return the `wire` of an engine that reports this version."""
    connector = CONNECTORS.get(spec.connector)
    return connector.wire(version, any_patch=spec.any_patch) if connector is not None else ""


def exchanges(prefill: Endpoint, decode: Endpoint) -> bool:
    """Whether P and D are of one revision, and run versions of vLLM that exchange KV, as far as is known."""
    known = prefill.wire and decode.wire
    return prefill.revision == decode.revision and (not known or prefill.wire == decode.wire)


def pairing(prefill: Endpoint, decode: Endpoint) -> Pairing:
    """Return the key of a pair in one generation of each."""
    return prefill.start + decode.start


def names_in(pair: Pairing) -> Names:
    """Return the pair in all generations."""
    return pair[0], pair[2]


def _family_of(spec: EndpointSpec) -> Family:
    return family_of(spec.connector, spec.order, spec.protocol) if spec.connector else _NO_HANDOFF
