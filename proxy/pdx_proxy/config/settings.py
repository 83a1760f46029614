"""Everything the gateway is told from outside, as frozen values."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pdx_api import defaults
from pdx_api.names import ADMIN_PORT, GATEWAY_PORT, LogFormat, Order, Policy, PrefillFailure, Role

MAX_WORKERS: Final = 64


class Address(NamedTuple):
    """Where something listens. A tuple, because connections are kept by it: a dataclass is hashed in Python."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_LISTEN: Final = Address("127.0.0.1", GATEWAY_PORT)
_ADMIN: Final = Address("127.0.0.1", ADMIN_PORT)


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
    instance: str = ""
    """The engine's present process, by any name: another one means that it has started anew."""
    ready: bool = True
    """Whether its pod is Ready: until it is, the engine is known and gets no leg."""
    leaving: bool = False
    """Whether its pod is being deleted: open legs finish, new ones go elsewhere."""
    identity_port: int = 0
    """Where a P's identity is asked, in families that ask; 0: the connector's own port."""
    ranks: int = 1
    """Data-parallel ranks behind its port (--data-parallel-size), each an engine by itself with a KV of its own."""
    rank: int | None = None
    """The one of them that this endpoint is; None: whichever the engine chooses."""
    protocol: str = ""
    """How a connector of the user's own is spoken to (see `connectors.custom`); empty for every other."""

    @property
    def name(self) -> str:
        """Unique name of the endpoint."""
        name = self.pod or str(self.address)
        return name if self.rank is None else f"{name}_dp{self.rank}"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each wait may take, in seconds; what a default is based on stands in `pdx_api.defaults`."""

    connect: float = defaults.CONNECT_SECONDS
    """TCP connection to an engine."""
    prefill: float = defaults.PREFILL_SECONDS
    """P's whole leg."""
    handoff: float = defaults.HANDOFF_SECONDS
    """P's answer to D's first event."""
    first_event: float = defaults.FIRST_EVENT_SECONDS
    """D's leg to the first event of its body, queueing included; also a whole request without streaming."""
    idle: float = defaults.IDLE_SECONDS
    """A stream without a byte of its engine."""
    total: float = defaults.TOTAL_SECONDS
    """A whole request, from its last byte to the last byte of its answer."""
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
class Retries:
    """What happens before the first event when an engine fails."""

    on_prefill_failure: PrefillFailure = PrefillFailure.RETRY
    attempts: int = defaults.ATTEMPTS
    """Most times a request is tried before the first event of its body, the last one on D alone."""
    budget_percent: int = defaults.RETRY_PERCENT
    """Retries of the last ten seconds as a share of its requests; beyond it a failure is told to the client."""
    min_retries: int = defaults.RETRIES_FREE
    """Retries in ten seconds that the share does not apply to."""


@dataclass(frozen=True, slots=True)
class Choosing:
    """How engines are chosen."""

    prefill_policy: Policy = Policy.LEAST_REQUESTS
    decode_policy: Policy = Policy.LEAST_REQUESTS
    disaggregate_above_tokens: int = 0
    """Prompts of at most this many tokens, as estimated, are served by D alone. 0 splits all."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one gateway takes on; several workers share it evenly."""

    in_flight_per_decode: int = defaults.IN_FLIGHT_PER_DECODE
    """Requests in flight for each warm engine that answers clients; further ones wait."""
    queued_requests: int = defaults.QUEUED_REQUESTS
    """Requests that wait; further ones are shed."""
    buffered_bytes: int = defaults.QUEUED_BYTES
    """Bodies held, waiting or being sent; further ones are shed."""
    queue_seconds: float = defaults.QUEUE_SECONDS
    """Longest wait."""
    requests_per_client: int = 0
    """Open requests of one client, by API key or else address; further ones are shed. 0 is no limit."""
    max_body_bytes: int = defaults.BODY_BYTES
    """Largest request body; a larger one is refused with 413."""


@dataclass(frozen=True, slots=True)
class Health:
    """When an engine is left out, and how it comes back."""

    consecutive_errors: int = defaults.FAILURES_IN_A_ROW
    """Answers of 500 and above, one after the other, until it is warmed anew. A lost connection counts at once."""
    slow_start_seconds: float = defaults.SLOW_START_SECONDS
    """How long after its warm-up an engine gets less than its share, rising evenly. 0: none."""


@dataclass(frozen=True, slots=True)
class Logs:
    """What is written to stderr."""

    format: LogFormat = LogFormat.TEXT
    slow_seconds: float = defaults.SLOW_SECONDS
    """From when on a request is slow whose answer has not begun: it gets a line. 0: every request does."""


@dataclass(frozen=True, slots=True)
class Verification:
    """How often the gateway checks whether KV moves within its pairs."""

    period_seconds: float = defaults.CANARY_SECONDS
    """Between two transfer probes of one engine, once every pair has a verdict. 0: none are sent."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Files of API keys, read again when they change."""

    clients: str | None = None
    """Who may use the gateway: lines of `sha256:HEX NAME`. None: everybody."""
    engines: str | None = None
    """The key that engines ask for (vLLM's --api-key). None: the client's Authorization goes on."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The gateway's configuration."""

    listen: Address = _LISTEN
    """Where clients are served."""
    admin: Address = _ADMIN
    """Where probes, /metrics and /pdx/state are served."""
    endpoints: tuple[EndpointSpec, ...] = ()
    """The engines at the start. Where they are discovered, none."""
    workers: int = 1
    """Processes that share the serving port."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    retries: Retries = field(default_factory=Retries)
    choosing: Choosing = field(default_factory=Choosing)
    limits: Limits = field(default_factory=Limits)
    health: Health = field(default_factory=Health)
    verification: Verification = field(default_factory=Verification)
    keys: Keys = field(default_factory=Keys)
    logs: Logs = field(default_factory=Logs)
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
