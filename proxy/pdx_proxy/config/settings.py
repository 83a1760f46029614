"""The gateway's settings, as frozen values: those with a flag (`pdx_api.settings.gateway`) and others. Pure."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from pdx_api.names import ADMIN_PORT, GATEWAY_PORT, Order, Role
from pdx_api.settings import gateway
from pdx_api.settings.kinds import in_bytes

MAX_WORKERS: Final = 64


class Address(NamedTuple):
    """Host and port. A tuple, because it is the key of the connection pool: a dataclass is hashed in Python."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_LISTEN: Final = Address("127.0.0.1", GATEWAY_PORT)
_ADMIN: Final = Address("127.0.0.1", ADMIN_PORT)


def parse_address(text: str) -> Address:
    """HOST:PORT, an IPv6 host in brackets; raises ValueError with a message for the user."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(f"{text} is not an address; write HOST:PORT, for example 127.0.0.1:{GATEWAY_PORT}")
    return Address(host, int(port))


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """One engine as flags or its pod describe it."""

    address: Address
    role: Role
    revision: str = "static"
    """A P and a D pair only within one revision."""
    connector: str = "NIXL"
    order: Order = Order.PREFILL_FIRST
    pod: str = ""
    """Name of its pod; empty for an engine from flags."""
    instance: str = ""
    """Identifies the engine's process: a different value means that the engine has restarted."""
    ready: bool = True
    """Whether its pod is Ready. Until then the engine gets no leg."""
    leaving: bool = False
    """Whether its pod is being deleted: open legs finish, and it gets no new ones."""
    identity_port: int = 0
    """The port of a P's identity, in families that request it; 0: the connector's default port."""
    ranks: int = 1
    """Data-parallel ranks behind its port (--data-parallel-size). Each is an engine with its own KV cache."""
    rank: int | None = None
    """The rank of this endpoint; None: the engine selects a rank for each request."""
    protocol: str = ""
    """The protocol of a custom connector (see `connectors.custom`); empty for every other."""
    any_patch: bool = False
    """Whether it pairs with other patch releases of its vLLM, whatever its connector requires."""
    sequences: int = 0
    """How many requests each of its ranks runs at a time (--max-num-seqs); 0: not known."""

    @property
    def name(self) -> str:
        """Unique name of the endpoint."""
        name = self.pod or str(self.address)
        return name if self.rank is None else f"{name}_dp{self.rank}"

    @property
    def runs(self) -> int:
        """How many requests the endpoint runs at a time; 0: not known."""
        return self.sequences * (self.ranks if self.rank is None else 1)


_LEAST_SHARE: Final = 0.2
_LARGEST_SHARE: Final = 0.4
"""Bounds of the share of a hand-off's deadline after which a D that shows no output should have the KV."""
_PROBE_SECONDS: Final = 5.0
"""How long a transfer probe takes to show whether KV moves. So much of the deadline is left, if possible."""


@dataclass(frozen=True, slots=True)
class Deadlines(gateway.Deadlines):
    """Limits of each wait, in seconds."""

    settle: float = 10.0
    """One settlement after a client has disconnected."""
    nearly_done: float = 1.0
    """How long an abandoned P may go on before it is stopped.

    vLLM detects a lost connection between two steps. A P in its last step finishes anyway, its answer is lost, and its
    blocks stay until their lease ends. So only prefills that take longer than this, or are queued, are stopped.
    """
    warm_up: float = 60.0
    """One warm-up of an engine. Its first forward pass may compile."""
    health_check: float = 2.0
    """One health check: a GET of /health over a new connection."""

    def answer(self, *, stream: bool) -> float:
        """Return the limit of an answer up to what opens it: its first event or, without a stream, its end.

        A stream whose engine may be silent from its beginning has none.
        """
        return self.first_event_seconds if stream else self.total_seconds

    @property
    def kv_due(self) -> float:
        """When a D that shows no output should have the KV of a finished P. A transfer probe ends in what is left."""
        deadline = self.handoff_seconds
        return max(_LEAST_SHARE * deadline, min(_LARGEST_SHARE * deadline, deadline - _PROBE_SECONDS))


@dataclass(frozen=True, slots=True)
class Retries(gateway.Retries, gateway.PrefillFailures):
    """What happens when an engine fails before the first event."""


@dataclass(frozen=True)
class Limits(gateway.ClientLimits, gateway.Queue):
    """Limits of one gateway, for all of its workers together."""

    @cached_property
    def buffered_bytes(self) -> int:
        """Bytes of bodies that wait or are being sent."""
        return in_bytes(self.max_buffered_bytes)

    @cached_property
    def max_body_bytes(self) -> int:
        """Bytes of the largest body."""
        return in_bytes(self.max_body_size)


@dataclass(frozen=True, slots=True)
class Health(gateway.SlowStart, gateway.OutlierDetection):
    """When an engine is ejected, and how it returns."""


@dataclass(frozen=True, slots=True)
class SLO(gateway.SLO):
    """The service level objectives of a request."""

    def seconds(self) -> dict[str, float]:
        """Return the targets that are set, in seconds, by their names."""
        targets = {"ttft": self.ttft_milliseconds, "tpot": self.tpot_milliseconds}
        return {name: milliseconds / 1000 for name, milliseconds in targets.items() if milliseconds}


@dataclass(frozen=True, slots=True)
class Settings:
    """The gateway's configuration."""

    listen: Address = _LISTEN
    """The serving port."""
    admin: Address = _ADMIN
    """The admin port: probes, /metrics, /pdx/state."""
    endpoints: tuple[EndpointSpec, ...] = ()
    """The engines from flags; empty with discovery."""
    workers: int = 1
    """Processes that share the serving port."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    retries: Retries = field(default_factory=Retries)
    choosing: gateway.Choosing = field(default_factory=gateway.Choosing)
    limits: Limits = field(default_factory=Limits)
    health: Health = field(default_factory=Health)
    verification: gateway.Verification = field(default_factory=gateway.Verification)
    slo: SLO = field(default_factory=SLO)
    cors: gateway.CORS = field(default_factory=gateway.CORS)
    streams: gateway.Streams = field(default_factory=gateway.Streams)
    keys: gateway.Keys = field(default_factory=gateway.Keys)
    tls: gateway.TLS = field(default_factory=gateway.TLS)
    logs: gateway.Logs = field(default_factory=gateway.Logs)
    tracing: gateway.Tracing | None = None
    """None: no traces."""
    idle_seconds: float = 4.0
    """How long an idle connection to an engine is kept: less than the 5 s after which vLLM closes it."""
    decode_lead_seconds: float = 0.01
    """In DecodeFirst, how long the gateway waits for the head of D's answer before it sends P's leg.

    A D that streams sends the head when it accepts the request; without a stream, it sends the head at the end.
    """
    warm_ups: int = 16
    """Concurrent warm-ups. Several gateways warm up the same engines, so this bounds the load on a large pool."""
    send_seconds: float = 60.0
    """How long a client may accept no byte while bytes wait for it. Then it is disconnected."""
    gone_seconds: float = 30.0
    """How long after an engine's pod is gone its open legs are cut: a lost node closes no connection."""
    drain_seconds: float = 0.0
    """How long after SIGTERM clients are served while /readyz answers 503: load balancers react late."""
    handshake_seconds: float = 0.25
    """How long after the drain connections are accepted whose handshake had begun: a round trip of the network."""
    shutdown_seconds: float = 30.0
    """How long open requests may take after the drain."""
    debug_headers: bool = False
    """Add the engines and phases of a request to its answer (x-pdx-prefill, x-pdx-decode, server-timing)."""
