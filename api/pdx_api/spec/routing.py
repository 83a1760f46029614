"""How the gateway treats requests: `spec.routing`, and most of `spec.gateway`."""

from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, StringConstraints

from pdx_api import defaults
from pdx_api.names import ORIGIN, LogFormat, Policy, PrefillFailure, Split
from pdx_api.rule import Rule
from pdx_api.rules.routing_rules import DEADLINES_RULES, RETRIES_RULES, ROUTING_RULES
from pdx_api.spec.fields import NetworkAddress, ObjectName, Part, SecretKey, Size, Text, matching, without_default

MEBIBYTE: Final = 1024 * 1024

Seconds = Annotated[int, Field(strict=True, ge=1, le=86_400)]
SecondsOrNone = Annotated[int, Field(strict=True, ge=0, le=3600)]
Amount = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]


class Deadlines(Part):
    """The deadlines of a request."""

    rules: ClassVar[tuple[Rule, ...]] = DEADLINES_RULES

    connect_seconds: Seconds = Field(
        default=int(defaults.CONNECT_SECONDS),
        description="Time to connect to an engine, in seconds. After that the gateway tries another engine. Engines "
        "of the same cluster answer in milliseconds.",
    )
    prefill_seconds: Seconds = Field(
        default=int(defaults.PREFILL_SECONDS),
        description="Time for the prefill request, in seconds. After that onPrefillFailure applies. A prompt of a "
        "million tokens takes minutes.",
    )
    handoff_seconds: Seconds = Field(
        default=int(defaults.HANDOFF_SECONDS),
        description="With push: time from the prefill engine's answer to the decode engine's first event, in seconds. "
        f"After that the request is retried. The prefill engine keeps the KV {defaults.LEASE_MARGIN_SECONDS:g} s "
        "longer (kv_lease_duration), unless kvTransfer.config sets that. With pull it sets only this lease, which "
        "the decode engine renews while the request is in its queue. A change makes a new revision, which replaces "
        "the engines.",
    )
    first_event_seconds: Seconds = Field(
        default=int(defaults.FIRST_EVENT_SECONDS),
        description="Time for the decode request of a stream up to its first event, in seconds, including the engine's "
        "queue. After that the request is retried. Without streaming, totalSeconds applies.",
    )
    idle_seconds: Seconds = Field(
        default=int(defaults.IDLE_SECONDS),
        description="Time between two pieces of a stream, in seconds. After that the stream ends with an error. No "
        "engine decodes so slowly.",
    )
    total_seconds: Seconds = Field(
        default=int(defaults.TOTAL_SECONDS),
        description="Time from the last byte of a request to the last byte of its answer, in seconds. After that the "
        "request ends with an error. Half a million tokens take an hour at 140 tokens per second.",
    )


class Retries(Part):
    """How often a request is retried. After the first event of its answer it is not."""

    rules: ClassVar[tuple[Rule, ...]] = RETRIES_RULES

    attempts: Annotated[int, Field(strict=True, ge=1, le=10)] = Field(
        default=defaults.ATTEMPTS,
        description="Maximum number of attempts per request. The last one is not split. 1: no retry.",
    )
    budget_percent: Annotated[int, Field(strict=True, ge=0, le=100)] = Field(
        default=defaults.RETRY_PERCENT,
        description="Limit on the retries of the last ten seconds, as a percentage of the requests. Above it, the "
        "client gets the error: so many failures are not accidental, and retries would only add load. A retry does "
        "not count if no engine has received the attempt.",
    )
    min_retries: Annotated[int, Field(strict=True, ge=0, le=10_000)] = Field(
        default=defaults.MIN_RETRIES,
        description="Retries in ten seconds that are always allowed, whatever budgetPercent is, because a gateway "
        f"with few requests must also be able to retry. Default: {defaults.MIN_RETRIES}.",
        json_schema_extra=without_default,
    )


class Queue(Part):
    """The requests that one gateway accepts at a time. Further ones are shed: 429 or 503 with Retry-After."""

    max_requests: Amount = Field(
        default=defaults.QUEUED_REQUESTS,
        description="Requests that may wait in one gateway for an engine. The gateway sheds further ones. 0: no "
        "request waits.",
    )
    max_wait_seconds: SecondsOrNone = Field(
        default=int(defaults.QUEUE_SECONDS),
        description="Longest wait in the gateway's queue, in seconds. After that the gateway sheds the request. Most "
        "clients have given up by then.",
    )
    max_in_flight_per_decode: Amount = Field(
        default=defaults.IN_FLIGHT_PER_DECODE,
        description="Maximum number of requests that one gateway sends to each decode (or aggregated) engine at a "
        "time; further ones wait. 0, the default: as many as the engine runs at a time by its metrics, plus at most "
        "a tenth, which keeps the engine's own queue short.",
        json_schema_extra=without_default,
    )
    max_in_flight_per_prefill: Amount = Field(
        default=defaults.IN_FLIGHT_PER_PREFILL,
        description="Maximum number of requests that one gateway sends to each prefill engine at a time; further "
        "ones wait. 0, the default: as many as the engine runs at a time by its metrics, plus as many that wait for "
        "its next step.",
        json_schema_extra=without_default,
    )
    max_buffered_bytes: Size = Field(
        default=f"{defaults.QUEUED_BYTES // MEBIBYTE}Mi",
        description="Memory of one gateway for request bodies that wait or are being sent, as a quantity. The "
        "gateway sheds further requests. A body needs about twice its size, so gateway.resources must include twice "
        f"this value. Default: {defaults.QUEUED_BYTES // MEBIBYTE}Mi.",
        json_schema_extra=without_default,
    )


class OutlierDetection(Part):
    """When a failing engine is ejected. A probe brings it back. The last engine of a role is never ejected."""

    consecutive_errors: Annotated[int, Field(strict=True, ge=1, le=1000)] = Field(
        default=defaults.CONSECUTIVE_ERRORS,
        description="Consecutive failures that one worker receives from an engine before the engine is ejected and "
        "probed. A failure is an answer of 500 and above (except 503), or an answer that breaks off. A connection "
        "lost before the answer ejects the engine at once; a 4xx never counts.",
    )
    stalled_seconds: SecondsOrNone = Field(
        default=int(defaults.STALLED_SECONDS),
        description="Time for which the running requests of an engine may make no progress, by its own metrics, in "
        "seconds. After that the engine is ejected and probed. An engine that prefills whole prompts in one step "
        f"(--no-enable-chunked-prefill) needs more than its longest prefill. Default: {defaults.STALLED_SECONDS:g}. "
        "0: no engine is ejected for this reason.",
        json_schema_extra=without_default,
    )


class Routing(Part):
    """How the gateway chooses engines, and what it does when one fails or all are busy. Only a change of
    deadlines.handoffSeconds replaces engines; every other change replaces gateways."""

    rules: ClassVar[tuple[Rule, ...]] = ROUTING_RULES

    split: Split = Field(
        default=Split.AUTO,
        description="Whether the gateway splits requests. Auto: it splits the requests that can be split, over the "
        "pairs within which KV moves. Never: a decode engine, or an idle prefill engine, serves each request alone. A "
        "change restarts the gateways only, so it is the fastest way out of a fault of the split. No effect in mode "
        "Aggregated.",
    )
    prefill_policy: Policy | None = Field(
        default=None,
        description="How the gateway selects the prefill engine. ExpectedWait, the default: that with the shortest "
        "wait for this prompt and for the prompts that it delays. The gateway estimates the wait by the tokens that "
        "the engine has to prefill, its cache and its speed. LeastRequests: the engine with the fewest requests of "
        "this gateway. LeastLoad: as LeastRequests, and also by the queue and KV use that engines report. "
        "PrefixAffinity: prompts with the same beginning go to the same engine. SessionAffinity: requests with the "
        "same x-session-id go to the same engine. No effect in mode Aggregated.",
    )
    decode_policy: Policy | None = Field(
        default=None,
        description="How the gateway selects the decode engine, or the engine in mode Aggregated. The values are those "
        "of prefillPolicy. Default for decode engines: LeastITL, the engine whose batch has the least inter-token "
        "latency, unless its KV cache is nearly full. Default in mode Aggregated: ExpectedWait. For decode engines, "
        "ExpectedWait means LeastITL. For prefill engines, LeastITL means LeastRequests.",
    )
    disaggregate_above_tokens: Annotated[int, Field(strict=True, ge=0, le=16_777_216)] = Field(
        default=0,
        description="Prompts of at most this many tokens, by the gateway's estimate, are not split, because moving the "
        "KV of a short prompt costs more than it saves. 0: all prompts are split. No effect in mode Aggregated.",
    )
    on_prefill_failure: PrefillFailure = Field(
        default=PrefillFailure.RETRY,
        description="What the gateway does if a prefill engine fails a request. Retry: it tries another one, and a "
        "decode engine alone as the last attempt. Local: it uses a decode engine alone at once. Fail: it returns the "
        "error to the client. No effect in mode Aggregated.",
    )
    retries: Retries = Field(default=Retries(), description="How often the gateway retries a request.")
    deadlines: Deadlines = Field(default=Deadlines(), description="The deadlines of a request.")
    queue: Queue = Field(default=Queue(), description="The requests that one gateway accepts at a time.")
    outlier_detection: OutlierDetection = Field(
        default=OutlierDetection(),
        description="When the gateway ejects a failing engine.",
        json_schema_extra=without_default,
    )
    slow_start_seconds: SecondsOrNone = Field(
        default=int(defaults.SLOW_START_SECONDS),
        description="Time for which a new engine receives less than its share of the requests, in seconds, because "
        "its caches are empty and it compiles its first shapes. The share rises linearly. 0: the full share at once.",
    )


class GatewayLimits(Part):
    """The limits for clients of the gateway."""

    max_body_size: Size = Field(
        default=f"{defaults.BODY_BYTES // MEBIBYTE}Mi",
        description="Largest body of a request, as a quantity. The gateway answers a larger one with 413.",
    )
    max_requests_per_client: Amount = Field(
        default=0,
        description="Maximum number of open requests of one client at one gateway; further ones get 429. The gateway "
        "identifies a client by its API key, or else by its address. Behind a proxy that is not in trustedProxies, "
        "all clients have the same address. 0: no limit.",
    )
    trusted_proxies: Annotated[list[NetworkAddress], Field(max_length=64)] = Field(
        default=[],
        description="Networks of the proxies in front of the gateway, for example 10.0.0.0/8. If a request comes "
        "from one of these networks, its client's address is the last one in X-Forwarded-For that is in none of "
        "them.",
        json_schema_extra=without_default,
    )


class GatewayLogs(Part):
    """The gateway's log on stderr: one line for each request that failed or was slow. No line contains any part of a
    prompt, a key or a body."""

    format: LogFormat = Field(default=LogFormat.TEXT, description="Format of the lines. JSON: one object per line.")
    slow_seconds: SecondsOrNone = Field(
        default=int(defaults.SLOW_SECONDS),
        description="A request is slow if its answer has not begun after this many seconds. 0: every request is slow.",
    )


Origin = Annotated[
    str,
    StringConstraints(max_length=253),
    matching(
        ORIGIN, "write an origin as SCHEME://HOST[:PORT] in lower case, for example https://chat.example.com, or *"
    ),
]


class GatewayCORS(Part):
    """Requests of browsers from pages of other origins (CORS)."""

    allowed_origins: Annotated[list[Origin], Field(max_length=64)] = Field(
        default=[],
        description="Origins whose pages may send requests and read answers, for example https://chat.example.com; "
        '"*" means all. Empty: none.',
    )


class ClientKeys(Part):
    """A Secret in the namespace of the object with the API keys of the clients."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(
        default="keys",
        description="Key of the value in the Secret. Each line of the value is `sha256:HEX NAME`: the hash of an API "
        "key, and the key's owner.",
    )


class GatewayAuth(Part):
    """The clients that may use the gateway."""

    secret_ref: ClientKeys = Field(
        description="The API keys. A client must send one of them as `Authorization: Bearer KEY`; otherwise it gets "
        "401. The gateway reads a change within two minutes. Not for `pdx up`."
    )


class EngineKey(Part):
    """A Secret in the namespace of the object with one API key."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(default="api-key", description="Key of the value in the Secret.")


class CertificateSecret(Part):
    """A Secret of type kubernetes.io/tls in the namespace of the object."""

    name: ObjectName = Field(description="Name of the Secret, with tls.crt and tls.key.")


class GatewayTLS(Part):
    """TLS on the gateway's serving port."""

    secret_ref: CertificateSecret = Field(
        description="The certificate and its key. When they change, the gateway reads them again and closes no "
        "connection."
    )


_HOSTNAME: Final = r"^([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
Hostname = Annotated[
    str,
    StringConstraints(max_length=253),
    matching(_HOSTNAME, "write a host name in lower case, for example llm.example.com or *.example.com"),
]


class ParentReference(Part):
    """A Gateway, or another parent of an HTTPRoute, as in the Gateway API."""

    group: Text | None = Field(default=None, description="API group. Default: gateway.networking.k8s.io.")
    kind: Text | None = Field(default=None, description="Kind. Default: Gateway.")
    namespace: ObjectName | None = Field(default=None, description="Namespace. Default: the object's.")
    name: ObjectName = Field(description="Name.")
    section_name: Text | None = Field(default=None, description="Name of a listener. Default: all listeners.")
    port: Annotated[int, Field(strict=True, ge=1, le=65_535)] | None = Field(
        default=None, description="Port of a listener. Default: all ports."
    )

    def manifest(self) -> dict[str, Any]:
        """The reference as in an HTTPRoute."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class GatewayHTTPRoute(Part):
    """An HTTPRoute to the gateway."""

    parent_refs: Annotated[list[ParentReference], Field(min_length=1, max_length=16)] = Field(
        description="The Gateways to which the route is attached."
    )
    hostnames: Annotated[list[Hostname], Field(max_length=16)] = Field(
        default=[], description="Host names of requests. The first one is the host of status.url. Default: all."
    )


class SLO(Part):
    """The service level objectives of a request: the targets of routing and of measurements. No request ends because
    it misses them."""

    ttft_milliseconds: Annotated[int, Field(strict=True, ge=1, le=3_600_000)] | None = Field(
        default=None,
        description="Longest TTFT (time to first token), in milliseconds. Late requests are still served. With "
        "tpotMilliseconds, a request is not split on two conditions: a decode engine would finish the prompt before "
        "any prefill engine, and its streams keep their TPOT. disaggregateAboveTokens then has no effect. Without "
        "tpotMilliseconds, only pdx bench uses this field. Default: no target.",
    )
    tpot_milliseconds: Annotated[int, Field(strict=True, ge=1, le=3_600_000)] | None = Field(
        default=None,
        description="Longest TPOT (mean time per output token after the first), in milliseconds. It limits the "
        "requests at each decode engine; further ones wait in the gateway's queue. Default: no target.",
    )
