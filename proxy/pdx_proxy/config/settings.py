"""The gateway's settings, as frozen values. Pure."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pdx_api import defaults
from pdx_api.names import ADMIN_PORT, GATEWAY_PORT, LogFormat, Order, Policy, PrefillFailure, Role, Split

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


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Limits of each wait, in seconds. `pdx_api.defaults` explains the defaults."""

    connect: float = defaults.CONNECT_SECONDS
    """A TCP connection to an engine."""
    prefill: float = defaults.PREFILL_SECONDS
    """P's whole leg."""
    handoff: float = defaults.HANDOFF_SECONDS
    """In push orders, from P's answer to D's first event: P's lease ends soon after it, and D does not renew it."""
    first_event: float = defaults.FIRST_EVENT_SECONDS
    """D's leg up to the first event of its stream, D's queue included."""
    idle: float = defaults.IDLE_SECONDS
    """The longest gap between two writes of an engine in a stream."""
    total: float = defaults.TOTAL_SECONDS
    """A whole request, from its last byte to the last byte of its answer."""
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
        return self.first_event if stream else self.total


@dataclass(frozen=True, slots=True)
class Retries:
    """What happens when an engine fails before the first event."""

    on_prefill_failure: PrefillFailure = PrefillFailure.RETRY
    attempts: int = defaults.ATTEMPTS
    """Most attempts before the first event of the answer. The last one uses D alone."""
    budget_percent: int = defaults.RETRY_PERCENT
    """Retries of the last ten seconds as a percentage of its requests. Beyond it the client gets the failure."""
    min_retries: int = defaults.MIN_RETRIES
    """Retries in ten seconds that are allowed whatever the percentage."""


@dataclass(frozen=True, slots=True)
class Choosing:
    """How engines are selected."""

    prefill_policy: Policy = Policy.EXPECTED_WAIT
    decode_policy: Policy | None = None
    """Also for aggregated engines. None: ExpectedWait for these, LeastITL for D's."""
    disaggregate_above_tokens: int = 0
    """D alone serves prompts of at most this many tokens, by the estimate. 0 splits all."""
    split: Split = Split.AUTO
    """Whether requests are split at all."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one gateway, for all of its workers together."""

    in_flight_per_decode: int = defaults.IN_FLIGHT_PER_DECODE
    """Most legs at each engine that answers clients. Further requests wait. 0: what the engine runs at a time."""
    queued_requests: int = defaults.QUEUED_REQUESTS
    """Requests in the queue. Further ones are shed."""
    buffered_bytes: int = defaults.QUEUED_BYTES
    """Bytes of bodies that wait or are being sent. Further requests are shed."""
    queue_seconds: float = defaults.QUEUE_SECONDS
    """Longest wait in the queue."""
    requests_per_client: int = 0
    """Open requests of one client, by API key or else address. Further ones are shed. 0: no limit."""
    max_body_bytes: int = defaults.BODY_BYTES
    """Largest request body. A larger one gets 413."""
    in_flight_per_prefill: int = defaults.IN_FLIGHT_PER_PREFILL
    """Most legs at each P. Further requests wait. 0: what the engine runs at a time."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies whose X-Forwarded-For names the client."""


@dataclass(frozen=True, slots=True)
class Health:
    """When an engine is ejected, and how it returns."""

    consecutive_errors: int = defaults.CONSECUTIVE_ERRORS
    """Consecutive answers of 500 and above, or broken off, until it is ejected. One lost before them ejects at once."""
    slow_start_seconds: float = defaults.SLOW_START_SECONDS
    """How long after its warm-up an engine gets less than its share, rising linearly. 0: no slow start."""
    stalled_seconds: float = defaults.STALLED_SECONDS
    """How long an engine's running requests may make no progress until it is ejected. 0: for ever."""


@dataclass(frozen=True, slots=True)
class Logs:
    """The log on stderr."""

    format: LogFormat = LogFormat.TEXT
    slow_seconds: float = defaults.SLOW_SECONDS
    """A request whose answer has not begun by then gets a line in the access log. 0: every request."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """Traces of requests."""

    endpoint: str | None = None
    """URL of an OTLP receiver over HTTP; None: no traces."""
    ratio: float = defaults.TRACING_RATIO
    """Share of the requests that are sampled. A request with a valid traceparent follows that instead."""


@dataclass(frozen=True, slots=True)
class Verification:
    """How often the gateway checks whether KV moves within its pairs."""

    period_seconds: float = defaults.VERIFICATION_PERIOD_SECONDS
    """Between two transfer probes of one engine, once every pair has a verdict. 0: none are sent."""


@dataclass(frozen=True, slots=True)
class SLO:
    """The service level objectives of a request, in milliseconds. 0: no target."""

    ttft_milliseconds: int = 0
    """Longest time to the first token. With both, D prefills what it finishes first, as long as its streams keep
    their TPOT."""
    tpot_milliseconds: int = 0
    """Longest mean time per further output token. It limits the legs at each D."""

    def seconds(self) -> dict[str, float]:
        """Return the targets that are set, in seconds, by their names."""
        targets = {"ttft": self.ttft_milliseconds / 1000, "tpot": self.tpot_milliseconds / 1000}
        return {name: seconds for name, seconds in targets.items() if seconds}


@dataclass(frozen=True, slots=True)
class CORS:
    """Browsers' requests from pages of other origins."""

    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may read answers; `*` stands for all. Empty: none, and preflight requests are refused."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Streamed answers."""

    keep_alive_seconds: float = 0.0
    """While engines prefill, a client without a byte for so long gets a comment in its stream. 0: it waits."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Files of API keys. Changed files are read again."""

    clients: str | None = None
    """Clients that may use the gateway: lines of `sha256:HEX NAME [weight=N]`. None: every client."""
    engines: str | None = None
    """The key that engines require (vLLM's --api-key). None: the client's Authorization is forwarded."""


@dataclass(frozen=True, slots=True)
class TLS:
    """Files of the serving port's certificate. Changed files are read again."""

    certificate: str | None = None
    """The certificate and its chain (PEM). None: plain HTTP."""
    key: str | None = None
    """Its private key (PEM)."""


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
    choosing: Choosing = field(default_factory=Choosing)
    limits: Limits = field(default_factory=Limits)
    health: Health = field(default_factory=Health)
    verification: Verification = field(default_factory=Verification)
    slo: SLO = field(default_factory=SLO)
    cors: CORS = field(default_factory=CORS)
    streams: Streams = field(default_factory=Streams)
    keys: Keys = field(default_factory=Keys)
    tls: TLS = field(default_factory=TLS)
    logs: Logs = field(default_factory=Logs)
    tracing: Tracing = field(default_factory=Tracing)
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
