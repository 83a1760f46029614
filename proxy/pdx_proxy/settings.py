"""Everything the gateway is told from outside, as frozen values."""

from dataclasses import dataclass, field
from typing import Final

from pdx_api.names import ADMIN_PORT, GATEWAY_PORT, Order, Role

MAX_WORKERS: Final = 64


@dataclass(frozen=True, slots=True)
class Address:
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """HOST:PORT, an IPv6 host in brackets; raises ValueError with a sentence."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(f"{text} is no address; write HOST:PORT, for example 127.0.0.1:{GATEWAY_PORT}")
    return Address(host, int(port))


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """One engine as it is known from outside, by flags or by its pod."""

    address: Address
    role: Role
    revision: str = "static"
    """Engines pair within one revision only."""
    connector: str = "NIXL"
    order: Order = Order.PREFILL_FIRST
    pod: str = ""
    """Name of its pod; empty for an engine that flags name."""
    incarnation: str = ""
    """The engine's present process, by any name: another one means that it has started anew."""
    ready: bool = True
    """Whether its pod is Ready: until it is, the engine is known and gets no leg."""
    leaving: bool = False
    """Whether its pod is being deleted: open legs finish, new ones go elsewhere."""

    @property
    def name(self) -> str:
        """Unique name of the endpoint."""
        return self.pod or str(self.address)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each wait may take, in seconds."""

    connect: float = 3.0
    """TCP connection to an engine. Engines of one cluster answer in milliseconds; longer means gone."""
    prefill: float = 300.0
    """P's whole leg. A prompt of a million tokens takes minutes."""
    handoff: float = 25.0
    """P's answer to D's first event. Below NIXL's lease of 30 s: after it P's blocks are gone and waiting is vain."""
    first_event: float = 600.0
    """D's leg to the first event of its body, queueing included; also a whole request without streaming."""
    settle: float = 10.0
    """One settling action after a client has left."""
    nearly_done: float = 1.0
    """How long a P may go on to finish when nobody waits for it any more.

    vLLM sees a lost connection between two steps. A P in its last step finishes in spite of it, its answer is lost, and
    its blocks wait for their lease. So only prefills with more than this to go, or in a queue, are stopped.
    """
    warm_up: float = 60.0
    """One warm-up of an engine; its first forward pass may compile."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The gateway's configuration."""

    listen: Address = Address("127.0.0.1", GATEWAY_PORT)
    """Where clients are served."""
    admin: Address = Address("127.0.0.1", ADMIN_PORT)
    """Where probes, /metrics and /pdx/state are served."""
    endpoints: tuple[EndpointSpec, ...] = ()
    """The engines at the start. Where they are discovered, none."""
    workers: int = 1
    """Processes that share the serving port."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    attempts: int = 3
    """Most times a request is tried before the first event of its body, the last one on D alone."""
    max_body_bytes: int = 64 * 1024 * 1024
    """Largest request body; a larger one is refused with 413."""
    idle_seconds: float = 4.0
    """How long an idle connection to an engine is kept: below the 5 s after which vLLM closes it."""
    decode_lead_seconds: float = 0.01
    """In DecodeFirst, how long D may take to answer its head before P's leg is sent anyway.

    A streaming D answers its head when it has accepted the request; one that does not stream answers at the end only.
    """
    warm_ups: int = 16
    """Warm-ups at a time. Several gateways warm the same engines: a large pool is not to answer them all at once."""
    gone_seconds: float = 30.0
    """How long after an engine's pod is gone its open legs are cut: a node that is lost ends no connection."""
    drain_seconds: float = 0.0
    """How long after SIGTERM clients are served as before, while /readyz says no: balancers learn of it late."""
    shutdown_seconds: float = 30.0
    """How long open requests may take after that."""
    debug_headers: bool = False
    """Name the engines and phases of a request in its answer (x-pdx-prefill, x-pdx-decode, server-timing)."""
