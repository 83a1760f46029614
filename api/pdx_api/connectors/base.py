"""What a connector is: how to wire an engine, and which family the gateway speaks to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pdx_api.connectors.checks import Checks
from pdx_api.connectors.families import Family
from pdx_api.names import Order, Role

KV_ROLES: Final = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
"""vLLM's `kv_role` of each role, where KV goes one way."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where an engine runs, as far as its connector must know."""

    host: str
    """Address under which the other engines reach it."""
    ports: Mapping[str, int]
    """A port for each name in the connector's `port_names`."""
    storage: str = ""
    """Directory that all engines share, where there is one."""
    code: str | None = None
    """Directory with the code of a connector of the user's own, where PDX brings it."""
    services: Mapping[str, "Site"] = field(default_factory=dict)
    """Where the connector's side services are reached, by their names."""
    files: str = ""
    """Directory where the engine finds its `EngineWiring.files`; of no other engine of the machine."""
    pool_bytes: int = 0
    """Size of a pool, or of what each engine gives to one."""
    revision: str = ""
    """Names what engines must have in common to use each other's KV."""


@dataclass(frozen=True, slots=True)
class EngineWiring:
    """What a connector adds to one engine."""

    kv_transfer_config: Mapping[str, Any]
    """vLLM's --kv-transfer-config."""
    env: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    """Flags of `vllm serve` that the connector cannot do without."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What the engine reads in `Site.files`: name -> content."""


@dataclass(frozen=True, slots=True)
class SideService:
    """A program that engines need beside them. On Kubernetes one of a revision is made together with them."""

    name: str
    """At most ten characters, as it stands in names of objects."""
    ports: Mapping[str, int] = field(hash=False)
    """The ports it opens: name -> number in a pod, where every address is its own. One called `names.PORT_METRICS`
    answers Prometheus."""
    command: Callable[[Site, float, int | None], tuple[str, ...]]
    """(where it listens, size of its pool in GiB, tokens in a KV block where the user says so) -> its command line.

    The site knows the services that come before it in the connector's list.
    """
    program: str
    """What must be installed for it."""
    probe_port: str
    """Name of the port with its health check."""
    probe_path: str
    """Answers 200 while it serves."""
    beside_engine: bool = False
    """One beside each engine, in its pod, and at its address; otherwise one for each revision."""
    holds_pool: bool = True
    """Whether it takes `spec.kvTransfer.poolSize` of memory. Where no service does, each prefill engine does."""
    title: str = ""
    """Its name in messages; empty: NAME server."""
    replaced_by: str = ""
    """The setting of `spec.kvTransfer.config` that names the user's own; with it none is started."""


class Connector(Protocol):
    """One KV connector. Instances are frozen; its methods are pure."""

    @property
    def name(self) -> str:
        """The value of `spec.kvTransfer.connector`."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """The orders it allows, its default first."""

    @property
    def port_names(self) -> Mapping[str, int]:
        """The ports an engine opens for it, beside HTTP: name -> number in a pod, where every address is its own."""

    @property
    def services(self) -> tuple[SideService, ...]:
        """What must run beside its engines."""

    @property
    def checks(self) -> Checks:
        """What an object must fulfil to name it, its own settings included."""

    def engine(self, role: Role, order: Order, site: Site, config: Mapping[str, Any]) -> EngineWiring:
        """Wiring of one engine; `config` is `keeping` and the user's `spec.kvTransfer.config` laid over it."""

    def keeping(self, seconds: int) -> Mapping[str, Any]:
        """What makes P keep the blocks of a finished prefill that long; empty where nothing has to be kept."""

    def family(self, order: Order) -> Family:
        """The protocol to speak for a pair wired in this order."""
