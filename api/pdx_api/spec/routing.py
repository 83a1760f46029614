"""How the gateway treats requests: `spec.routing`, `spec.gateway.limits`, and who may use it: `spec.gateway.auth`."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from pdx_api import defaults
from pdx_api.names import LogFormat, Policy, PrefillFailure
from pdx_api.rule import Rule
from pdx_api.rules.routing_rules import DEADLINES_RULES, RETRIES_RULES, ROUTING_RULES
from pdx_api.spec.fields import ObjectName, Part, SecretKey, Size

MEBIBYTE: Final = 1024 * 1024

Seconds = Annotated[int, Field(strict=True, ge=1, le=86_400)]
SecondsOrNone = Annotated[int, Field(strict=True, ge=0, le=3600)]
Amount = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]


class Deadlines(Part):
    """How long each wait of a request may take."""

    rules: ClassVar[tuple[Rule, ...]] = DEADLINES_RULES

    connect_seconds: Seconds = Field(
        default=int(defaults.CONNECT_SECONDS),
        description="A connection to an engine, in seconds; then another engine is tried. Engines of one cluster "
        "answer in milliseconds: longer means gone.",
    )
    prefill_seconds: Seconds = Field(
        default=int(defaults.PREFILL_SECONDS),
        description="P's whole part of a request, in seconds; then onPrefillFailure applies. A prompt of a million "
        "tokens takes minutes.",
    )
    handoff_seconds: Seconds = Field(
        default=int(defaults.HANDOFF_SECONDS),
        description="P's answer to D's first event, in seconds; then the request is tried again. P is told to keep "
        f"blocks {defaults.LEASE_MARGIN_SECONDS:g} s longer (kv_lease_duration), unless kvTransfer.config says how "
        "long: so another value is another revision, and replaces the engines.",
    )
    first_event_seconds: Seconds = Field(
        default=int(defaults.FIRST_EVENT_SECONDS),
        description="D's part of a request to the first event of its answer, in seconds, its queue included; without "
        "a stream the whole answer. Then the request is tried again.",
    )
    idle_seconds: Seconds = Field(
        default=int(defaults.IDLE_SECONDS),
        description="A stream without a byte of its engine, in seconds; then it ends with an error. Nothing decodes "
        "that slowly.",
    )
    total_seconds: Seconds = Field(
        default=int(defaults.TOTAL_SECONDS),
        description="A whole request, from its last byte to the last byte of its answer, in seconds; then it ends with "
        "an error. Half a million tokens take an hour at 140 tokens a second.",
    )


class Retries(Part):
    """How often a request is tried again. After the first event of its answer nothing is sent twice."""

    rules: ClassVar[tuple[Rule, ...]] = RETRIES_RULES

    attempts: Annotated[int, Field(strict=True, ge=1, le=10)] = Field(
        default=defaults.ATTEMPTS,
        description="Most times a request is tried, the last one on D alone. 1: once only.",
    )
    budget_percent: Annotated[int, Field(strict=True, ge=0, le=100)] = Field(
        default=defaults.RETRY_PERCENT,
        description="Retries of the last ten seconds as a percentage of its requests; beyond it a failure is told to "
        "the client. What fails more often is no accident, and retries would only add load. An attempt that no engine "
        "has got anything of does not count.",
    )
    free: Annotated[int, Field(strict=True, ge=0, le=10_000)] = Field(
        default=defaults.RETRIES_FREE,
        description="Retries in ten seconds that budgetPercent does not apply to, so that a quiet gateway retries too.",
    )


class Queue(Part):
    """What one gateway takes on at a time; its workers share it evenly. What is beyond it is shed: 429 or 503 with
    Retry-After."""

    max_requests: Amount = Field(
        default=defaults.QUEUED_REQUESTS,
        description="Requests that wait in one gateway for an engine; further ones are shed. 0: none waits.",
    )
    max_wait_seconds: SecondsOrNone = Field(
        default=int(defaults.QUEUE_SECONDS),
        description="Longest wait, in seconds; then a request is shed. Clients that wait longer have mostly given up.",
    )
    max_in_flight_per_decode: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = Field(
        default=defaults.IN_FLIGHT_PER_DECODE,
        description="Requests that one gateway has with each decode (or aggregated) engine; further ones wait. vLLM "
        "runs 256 sequences by default, and as many may wait in its own queue.",
    )
    max_memory: Size = Field(
        default=f"{defaults.QUEUED_BYTES // MEBIBYTE}Mi",
        description="Memory of one gateway for bodies that wait or are being sent, as a quantity; requests beyond it "
        "are shed. gateway.resources must hold it.",
    )


class Ejection(Part):
    """When an engine that fails is left out. The last one of its role never is, and it comes back by a probe."""

    consecutive_failures: Annotated[int, Field(strict=True, ge=1, le=1000)] = Field(
        default=defaults.FAILURES_IN_A_ROW,
        description="Answers of 500 and above (503 apart) that one worker gets one after the other, until the engine "
        "is left out and probed. A lost connection is enough by itself; a 4xx never counts.",
    )


class Routing(Part):
    """How the gateway chooses engines, and what it does when one fails or all are busy. Engines are touched by
    deadlines.handoffSeconds only; every other change replaces gateways."""

    rules: ClassVar[tuple[Rule, ...]] = ROUTING_RULES

    prefill_policy: Policy = Field(
        default=Policy.LEAST_REQUESTS,
        description="How P is chosen. LeastRequests: fewest requests of this gateway. LeastLoad: also by the queue and "
        "the KV use that engines report. PrefixAffinity: the same beginning of a prompt to the same engine. "
        "SessionAffinity: the same x-session-id to the same engine. Without effect in mode Aggregated.",
    )
    decode_policy: Policy = Field(
        default=Policy.LEAST_REQUESTS,
        description="How D (in mode Aggregated the engine) is chosen; values as of prefillPolicy.",
    )
    disaggregate_above_tokens: Annotated[int, Field(strict=True, ge=0, le=16_777_216)] = Field(
        default=0,
        description="Prompts of at most this many tokens, as the gateway estimates them, are served by D alone: for "
        "short ones a hand-off costs more than it saves. 0 splits all. Without effect in mode Aggregated.",
    )
    on_prefill_failure: PrefillFailure = Field(
        default=PrefillFailure.RETRY,
        description="What happens when P fails a request. Retry: another P, and D alone when no attempt is left. "
        "Local: D alone at once. Fail: the client is told. Without effect in mode Aggregated.",
    )
    retries: Retries = Field(default=Retries(), description="How often a request is tried again.")
    deadlines: Deadlines = Field(default=Deadlines(), description="How long each wait of a request may take.")
    queue: Queue = Field(default=Queue(), description="What one gateway takes on at a time.")
    ejection: Ejection = Field(default=Ejection(), description="When an engine that fails is left out.")
    slow_start_seconds: SecondsOrNone = Field(
        default=int(defaults.SLOW_START_SECONDS),
        description="How long a new engine gets less than its share, rising evenly, in seconds: its caches are empty "
        "and its first shapes compile. 0: not at all.",
    )
    canary_seconds: SecondsOrNone = Field(
        default=int(defaults.CANARY_SECONDS),
        description="Seconds between two prompts of the gateway's own that show whether KV travels to or from an "
        "engine (condition KVTransferVerified). Each costs about 350 tokens of prefill. 0: none are sent.",
    )


class GatewayLimits(Part):
    """What the gateway takes from clients."""

    max_body_size: Size = Field(
        default=f"{defaults.BODY_BYTES // MEBIBYTE}Mi",
        description="Largest body of a request, as a quantity; a larger one is refused with 413.",
    )
    max_requests_per_client: Amount = Field(
        default=0,
        description="Open requests of one client at one gateway, by API key or else by address; further ones get 429. "
        "Behind a proxy all clients may have one address. 0: no limit.",
    )


class GatewayLogs(Part):
    """What the gateway writes to stderr: a line for each request that failed or was slow. No line holds anything of a
    prompt, a key or a body."""

    format: LogFormat = Field(
        default=LogFormat.TEXT, description="How lines are written. JSON: an object on each line."
    )
    slow_seconds: SecondsOrNone = Field(
        default=int(defaults.SLOW_SECONDS),
        description="From how many seconds on, until its answer begins, a request is slow. 0: every request is.",
    )


class ClientKeys(Part):
    """A Secret in the namespace of the object that lists who may use the gateway."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(
        default="keys",
        description="Which of its values: lines of `sha256:HEX NAME`, the hash of an API key and who has it.",
    )


class GatewayAuth(Part):
    """Who may use the gateway."""

    secret_ref: ClientKeys = Field(
        description="The API keys that clients may send as `Authorization: Bearer KEY`; without one of them they get "
        "401. The gateway sees a change within a minute or two. Not for `pdx up`."
    )


class EngineKey(Part):
    """A Secret in the namespace of the object that holds one API key."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(default="api-key", description="Which of its values.")
