"""How the gateway treats requests: `spec.routing`, and `limits`, `logs` and `auth` of `spec.gateway`."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from pdx_api import defaults
from pdx_api.names import LogFormat, Policy, PrefillFailure
from pdx_api.rule import Rule
from pdx_api.rules.routing_rules import DEADLINES_RULES, RETRIES_RULES, ROUTING_RULES
from pdx_api.spec.fields import NetworkAddress, ObjectName, Part, SecretKey, Size, without_default

MEBIBYTE: Final = 1024 * 1024

Seconds = Annotated[int, Field(strict=True, ge=1, le=86_400)]
SecondsOrNone = Annotated[int, Field(strict=True, ge=0, le=3600)]
Amount = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]


class Deadlines(Part):
    """The deadlines of a request."""

    rules: ClassVar[tuple[Rule, ...]] = DEADLINES_RULES

    connect_seconds: Seconds = Field(
        default=int(defaults.CONNECT_SECONDS),
        description="To connect to an engine, in seconds; then the gateway tries another engine. Engines of one "
        "cluster answer in milliseconds.",
    )
    prefill_seconds: Seconds = Field(
        default=int(defaults.PREFILL_SECONDS),
        description="The whole prefill leg, in seconds; then onPrefillFailure applies. A prompt of a million tokens "
        "takes minutes.",
    )
    handoff_seconds: Seconds = Field(
        default=int(defaults.HANDOFF_SECONDS),
        description="In push orders, from P's answer to D's first event, in seconds; then the request is retried. P "
        f"pins its blocks {defaults.LEASE_MARGIN_SECONDS:g} s longer (kv_lease_duration), unless kvTransfer.config "
        "sets that. In pull orders it only sets that lease, which D renews while the request is in its queue. A change "
        "of this field makes a new revision, which replaces the engines.",
    )
    first_event_seconds: Seconds = Field(
        default=int(defaults.FIRST_EVENT_SECONDS),
        description="The decode leg of a stream up to its first event, in seconds, including the engine's queue. Then "
        "the request is retried. Without streaming, totalSeconds applies.",
    )
    idle_seconds: Seconds = Field(
        default=int(defaults.IDLE_SECONDS),
        description="Between two pieces of a stream, in seconds; then the stream ends with an error. No engine decodes "
        "so slowly.",
    )
    total_seconds: Seconds = Field(
        default=int(defaults.TOTAL_SECONDS),
        description="From the last byte of a request to the last byte of its answer, in seconds; then it ends with "
        "an error. Half a million tokens take an hour at 140 tokens a second.",
    )


class Retries(Part):
    """How often a request is retried. After the first event of its answer it is not."""

    rules: ClassVar[tuple[Rule, ...]] = RETRIES_RULES

    attempts: Annotated[int, Field(strict=True, ge=1, le=10)] = Field(
        default=defaults.ATTEMPTS,
        description="Attempts of one request, at most. The last one uses D alone. 1: no retry.",
    )
    budget_percent: Annotated[int, Field(strict=True, ge=0, le=100)] = Field(
        default=defaults.RETRY_PERCENT,
        description="Retries of the last ten seconds as a percentage of the requests. Above it the client gets the "
        "error: more failures than that are not accidental, and retries would only add load. A retry does not count if "
        "no engine has received the attempt.",
    )
    free: Annotated[int, Field(strict=True, ge=0, le=10_000)] = Field(
        default=defaults.MIN_RETRIES,
        description="Retries in ten seconds that are allowed whatever budgetPercent is, so that a gateway with few "
        "requests retries too.",
    )


class Queue(Part):
    """The requests that one gateway accepts at a time. Further ones are shed: 429 or 503 with Retry-After."""

    max_requests: Amount = Field(
        default=defaults.QUEUED_REQUESTS,
        description="Requests that may wait in one gateway for an engine; further ones are shed. 0: no request waits.",
    )
    max_wait_seconds: SecondsOrNone = Field(
        default=int(defaults.QUEUE_SECONDS),
        description="Longest wait, in seconds; then a request is shed. Most clients have given up by then.",
    )
    max_in_flight_per_decode: Amount = Field(
        default=defaults.IN_FLIGHT_PER_DECODE,
        description="Most requests of one gateway at each decode (or aggregated) engine; further ones wait. 0, the "
        "default: as many as the engine runs at a time, by its metrics, and at most a tenth more, so that its own "
        "queue stays short.",
        json_schema_extra=without_default,
    )
    max_in_flight_per_prefill: Amount = Field(
        default=defaults.IN_FLIGHT_PER_PREFILL,
        description="Most requests of one gateway at each prefill engine; further ones wait. 0, the default: as many "
        "as the engine runs at a time, by its metrics, and as many that wait for its next step.",
        json_schema_extra=without_default,
    )
    max_memory: Size = Field(
        default=f"{defaults.QUEUED_BYTES // MEBIBYTE}Mi",
        description="Memory of one gateway for request bodies that wait or are being sent, as a quantity; further "
        "requests are shed. gateway.resources must include it.",
    )


class Ejection(Part):
    """When a failing engine is ejected. A probe brings it back. The last engine of a role is never ejected."""

    consecutive_failures: Annotated[int, Field(strict=True, ge=1, le=1000)] = Field(
        default=defaults.CONSECUTIVE_ERRORS,
        description="Consecutive answers of 500 and above, except 503, that one worker receives until the engine is "
        "ejected and probed. A lost connection ejects at once; a 4xx never counts.",
    )
    stalled_seconds: SecondsOrNone = Field(
        default=int(defaults.STALLED_SECONDS),
        description="How long the running requests of an engine may make no progress, by its own metrics, until it is "
        "ejected and probed. An engine that prefills whole prompts in one step (--no-enable-chunked-prefill) needs "
        f"more than its longest prefill. Default: {defaults.STALLED_SECONDS:g}. 0: no engine is.",
        json_schema_extra=without_default,
    )


class Routing(Part):
    """How the gateway chooses engines, and what it does when one fails or all are busy. Only a change of
    deadlines.handoffSeconds replaces engines; every other change replaces gateways."""

    rules: ClassVar[tuple[Rule, ...]] = ROUTING_RULES

    prefill_policy: Policy | None = Field(
        default=None,
        description="How the gateway chooses P. ExpectedWait, the default: the engine where the prompt, and those "
        "that it delays, wait least: by the tokens that it has to prefill, its cache and its speed. "
        "LeastRequests: the engine with the fewest requests of this gateway. LeastLoad: also by the queue and KV use "
        "that engines report. PrefixAffinity: prompts with the same beginning to the same engine. SessionAffinity: "
        "requests with the same x-session-id to the same engine. No effect in mode Aggregated.",
    )
    decode_policy: Policy | None = Field(
        default=None,
        description="How the gateway chooses D, or the engine in mode Aggregated. Values as for prefillPolicy. "
        "Default: LeastRequests for D; ExpectedWait in mode Aggregated. For a D, which prefills nothing, ExpectedWait "
        "means LeastRequests.",
    )
    disaggregate_above_tokens: Annotated[int, Field(strict=True, ge=0, le=16_777_216)] = Field(
        default=0,
        description="D alone serves prompts of at most this many tokens, by the gateway's estimate: for short prompts "
        "a hand-off costs more than it saves. 0: all prompts are split. No effect in mode Aggregated.",
    )
    on_prefill_failure: PrefillFailure = Field(
        default=PrefillFailure.RETRY,
        description="What happens when P fails a request. Retry: another P, then D alone as the last attempt. Local: D "
        "alone at once. Fail: the client gets the error. No effect in mode Aggregated.",
    )
    retries: Retries = Field(default=Retries(), description="How often a request is retried.")
    deadlines: Deadlines = Field(default=Deadlines(), description="The deadlines of a request.")
    queue: Queue = Field(default=Queue(), description="The requests that one gateway accepts at a time.")
    ejection: Ejection = Field(default=Ejection(), description="When a failing engine is ejected.")
    slow_start_seconds: SecondsOrNone = Field(
        default=int(defaults.SLOW_START_SECONDS),
        description="How long a new engine receives less than its share, in seconds: its caches are empty and it "
        "compiles its first shapes. The share rises linearly. 0: full share at once.",
    )
    canary_seconds: SecondsOrNone = Field(
        default=int(defaults.VERIFICATION_PERIOD_SECONDS),
        description="Seconds between two transfer probes of one engine, which show whether KV moves (condition "
        "KVTransferVerified). Each costs about 350 tokens of prefill. 0: no transfer probes.",
    )


class GatewayLimits(Part):
    """The limits for clients of the gateway."""

    max_body_size: Size = Field(
        default=f"{defaults.BODY_BYTES // MEBIBYTE}Mi",
        description="Largest body of a request, as a quantity; a larger one is refused with 413.",
    )
    max_requests_per_client: Amount = Field(
        default=0,
        description="Open requests of one client at one gateway; further ones get 429. Clients are distinguished by "
        "API key, or else by address: behind a proxy that is not in trustedProxies all have one address. 0: no limit.",
    )
    trusted_proxies: Annotated[list[NetworkAddress], Field(max_length=64)] = Field(
        default=[],
        description="Networks of the proxies in front of the gateway, for example 10.0.0.0/8. Of a request that comes "
        "from one of them, the client's address is the last one in X-Forwarded-For that none of them has.",
        json_schema_extra=without_default,
    )


class GatewayLogs(Part):
    """The gateway's log on stderr: one line for each request that failed or was slow. No line contains any part of a
    prompt, a key or a body."""

    format: LogFormat = Field(default=LogFormat.TEXT, description="Format of the lines. JSON: one object on each line.")
    slow_seconds: SecondsOrNone = Field(
        default=int(defaults.SLOW_SECONDS),
        description="A request is slow if its answer has not begun after this many seconds. 0: every request is slow.",
    )


class ClientKeys(Part):
    """A Secret in the namespace of the object with the API keys of the clients."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(
        default="keys",
        description="Key of the value in the Secret: lines of `sha256:HEX NAME`, the hash of an API key and its owner.",
    )


class GatewayAuth(Part):
    """The clients that may use the gateway."""

    secret_ref: ClientKeys = Field(
        description="API keys, of which a client must send one as `Authorization: Bearer KEY`; otherwise it gets 401. "
        "The gateway reads a change within two minutes. Not for `pdx up`."
    )


class EngineKey(Part):
    """A Secret in the namespace of the object with one API key."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(default="api-key", description="Key of the value in the Secret.")
