"""Every setting of the gateway that has a flag: its unit, bounds and default, its help, and its field in the spec.

Each class is a group of settings. The gateway's settings (`pdx_proxy.config.settings`) and the parts of the spec
(`pdx_api.spec`) inherit from it. Its instances have no slots, because a model of pydantic cannot inherit from a class
with slots.
"""

from dataclasses import dataclass
from typing import Annotated

from pdx_api import names
from pdx_api.defaults import LEASE_MARGIN_SECONDS
from pdx_api.otlp import ENDPOINT_RULES
from pdx_api.settings.kinds import FILE, Bytes, Choice, Networks, Origins, Seconds, Share, Text, Whole
from pdx_api.settings.setting import REQUIRED, setting

_Wait = Annotated[float, Seconds(1, 86_400)]
_WaitOrZero = Annotated[float, Seconds(0, 3600)]
_Amount = Annotated[int, Whole(0, 1_000_000)]
_Milliseconds = Annotated[int | None, Whole(1, 3_600_000, optional=True, metavar="MS")]
_Policy = Annotated[names.Policy | None, Choice(names.Policy, "POLICY")]
_File = Annotated[str | None, FILE]


@dataclass(frozen=True)
class Choosing:
    """How engines are selected."""

    split: Annotated[names.Split, Choice(names.Split, "WHETHER")] = setting(
        names.Split.AUTO,
        "whether to split requests: Auto (those that can be split) or Never (one engine serves each request)",
        "Whether the gateway splits requests. Auto: it splits the requests that can be split, over the pairs within "
        "which KV moves. Never: a decode engine, or an idle prefill engine, serves each request alone. A change "
        "restarts the gateways only, so it is the fastest way out of a fault of the split. No effect in mode "
        "Aggregated.",
    )
    prefill_policy: _Policy = setting(
        None,
        f"how to select the prefill engine: {'|'.join(names.Policy)} ({names.Policy.EXPECTED_WAIT})",
        "How the gateway selects the prefill engine. ExpectedWait, the default: that with the shortest wait for this "
        "prompt and for the prompts that it delays. The gateway estimates the wait by the tokens that the engine has "
        "to prefill, its cache and its speed. LeastRequests: the engine with the fewest requests of this gateway. "
        "LeastLoad: as LeastRequests, and also by the queue and KV use that engines report. PrefixAffinity: prompts "
        "with the same beginning go to the same engine. SessionAffinity: requests with the same x-session-id go to "
        "the same engine. No effect in mode Aggregated.",
    )
    decode_policy: _Policy = setting(
        None,
        "how to select the decode engine; the same values",
        "How the gateway selects the decode engine, or the engine in mode Aggregated. The values are those of "
        "prefillPolicy. Default for decode engines: LeastITL, the engine whose batch has the least inter-token "
        "latency, unless its KV cache is nearly full. Default in mode Aggregated: ExpectedWait. For decode engines, "
        "ExpectedWait means LeastITL. For prefill engines, LeastITL means LeastRequests.",
    )
    disaggregate_above_tokens: Annotated[int, Whole(0, 16_777_216)] = setting(
        0,
        "a decode engine alone serves prompts of at most N tokens, by an estimate; 0: split all; if both objectives "
        "below are set, estimated times decide instead",
        "Prompts of at most this many tokens, by the gateway's estimate, are not split, because moving the KV of a "
        "short prompt costs more than it saves. 0: all prompts are split. No effect in mode Aggregated.",
    )


@dataclass(frozen=True)
class PrefillFailures:
    """What happens when a P fails."""

    on_prefill_failure: Annotated[names.PrefillFailure, Choice(names.PrefillFailure, "WHAT")] = setting(
        names.PrefillFailure.RETRY,
        "if a prefill engine fails: Retry (another one, finally a decode engine alone), Local (a decode engine alone "
        "at once) or Fail (return the error)",
        "What the gateway does if a prefill engine fails a request. Retry: it tries another one, and a decode engine "
        "alone as the last attempt. Local: it uses a decode engine alone at once. Fail: it returns the error to the "
        "client. No effect in mode Aggregated.",
    )


@dataclass(frozen=True)
class Retries:
    """How often a request is retried."""

    attempts: Annotated[int, Whole(1, 10)] = setting(
        3,
        "maximum number of attempts before the first event of an answer",
        "Maximum number of attempts per request. The last one is not split. 1: no retry.",
    )
    budget_percent: Annotated[int, Whole(0, 100)] = setting(
        20,
        "limit on the retries of the last ten seconds, as a percentage of the requests",
        "Limit on the retries of the last ten seconds, as a percentage of the requests. Above it, the client gets the "
        "error: so many failures are not accidental, and retries would only add load. A retry does not count if no "
        "engine has received the attempt.",
        flag="--retry-budget-percent",
    )
    min_retries: Annotated[int, Whole(0, 10_000)] = setting(
        10,
        "retries in ten seconds that are always allowed, whatever the percentage",
        "Retries in ten seconds that are always allowed, whatever budgetPercent is, because a gateway with few "
        "requests must also be able to retry. Default: {default}.",
        crd_default=False,
    )


@dataclass(frozen=True)
class Deadlines:
    """Limits of each wait."""

    connect_seconds: _Wait = setting(
        3,
        "time to connect to an engine",
        "Time to connect to an engine, in seconds. After that the gateway tries another engine. Engines of the same "
        "cluster answer in milliseconds.",
    )
    prefill_seconds: _Wait = setting(
        300,
        "time for the whole prefill request",
        "Time for the prefill request, in seconds. After that onPrefillFailure applies. A prompt of a million tokens "
        "takes minutes.",
    )
    handoff_seconds: _Wait = setting(
        25,
        "in push orders, time from the prefill engine's answer to the decode engine's first event; the engines' "
        "kv_lease_duration must be longer",
        "With push: time from the prefill engine's answer to the decode engine's first event, in seconds. After that "
        f"the request is retried. The prefill engine keeps the KV {LEASE_MARGIN_SECONDS:g} s longer "
        "(kv_lease_duration), unless kvTransfer.config sets that. With pull it sets this lease, which the decode "
        "engine renews while the request is in its queue, and the time after which the gateway checks a slow transfer. "
        "A change makes a new revision, which replaces the engines.",
    )
    first_event_seconds: _Wait = setting(
        600,
        "time for the decode request of a stream up to its first event, including the engine's queue",
        "Time for the decode request of a stream up to its first event, in seconds, including the engine's queue. "
        "After that the request is retried. Without streaming, totalSeconds applies.",
    )
    idle_seconds: _Wait = setting(
        300,
        "longest gap in an engine's stream",
        "Time between two pieces of a stream, in seconds. After that the stream ends with an error. No engine decodes "
        "so slowly.",
    )
    total_seconds: _Wait = setting(
        3600,
        "time for a whole request",
        "Time from the last byte of a request to the last byte of its answer, in seconds. After that the request ends "
        "with an error. Half a million tokens take an hour at 140 tokens per second.",
    )


@dataclass(frozen=True)
class Queue:
    """The requests that one gateway accepts at a time, for all of its workers together."""

    max_requests: _Amount = setting(
        1024,
        "maximum number of requests in the queue; the gateway sheds further ones",
        "Requests that may wait in one gateway for an engine. The gateway sheds further ones. 0: no request waits.",
        flag="--max-queued-requests",
    )
    max_wait_seconds: _WaitOrZero = setting(
        30,
        "longest wait in the queue; after that the gateway sheds the request",
        "Longest wait in the gateway's queue, in seconds. After that the gateway sheds the request. Most clients have "
        "given up by then.",
    )
    max_in_flight_per_decode: _Amount = setting(
        0,
        "maximum number of requests at each decode or aggregated engine; further ones wait; 0: as many as the engine "
        "runs, by its metrics",
        "Maximum number of requests that one gateway sends to each decode (or aggregated) engine at a time; further "
        "ones wait. 0, the default: as many as the engine runs at a time by its metrics, plus at most a tenth, which "
        "keeps the engine's own queue short.",
        crd_default=False,
    )
    max_in_flight_per_prefill: _Amount = setting(
        0,
        "maximum number of requests at each prefill engine; as above",
        "Maximum number of requests that one gateway sends to each prefill engine at a time; further ones wait. 0, "
        "the default: as many as the engine runs at a time by its metrics, plus as many that wait for its next step.",
        crd_default=False,
    )
    max_buffered_bytes: Bytes = setting(
        "256Mi",
        "memory for bodies that wait or are being sent, for example 256Mi; the gateway sheds further requests",
        "Memory of one gateway for request bodies that wait or are being sent, as a quantity. The gateway sheds "
        "further requests. A body needs about twice its size, so gateway.resources must include twice this value. "
        "Default: {default}.",
        crd_default=False,
    )


@dataclass(frozen=True)
class ClientLimits:
    """The limits for clients."""

    max_body_size: Bytes = setting(
        "64Mi",
        "largest body, for example 64Mi; a larger one gets 413",
        "Largest body of a request, as a quantity. The gateway answers a larger one with 413.",
    )
    max_requests_per_client: _Amount = setting(
        0,
        "maximum number of open requests per API key, or per address if there is no key; 0: no limit",
        "Maximum number of open requests of one client at one gateway; further ones get 429. The gateway identifies a "
        "client by its API key, or else by its address. Behind a proxy that is not in trustedProxies, all clients "
        "have the same address. 0: no limit.",
    )
    trusted_proxies: Networks = setting(
        (),
        "networks of proxies whose X-Forwarded-For names the client, for example 10.0.0.0/8; may be repeated",
        "Networks of the proxies in front of the gateway, for example 10.0.0.0/8. If a request comes from one of "
        "these networks, its client's address is the last one in X-Forwarded-For that is in none of them.",
        crd_default=False,
    )


@dataclass(frozen=True)
class OutlierDetection:
    """When an engine is ejected."""

    consecutive_errors: Annotated[int, Whole(1, 1000)] = setting(
        5,
        "consecutive answers of 500 and above after which an engine is ejected and probed",
        "Consecutive failures that one worker receives from an engine before the engine is ejected and probed. A "
        "failure is an answer of 500 and above (except 503), or an answer that breaks off. A connection lost before "
        "the answer ejects the engine at once; a 4xx never counts.",
    )
    stalled_seconds: _WaitOrZero = setting(
        30,
        "eject an engine whose running requests make no progress for S seconds, by its metrics; 0: never",
        "Time for which the running requests of an engine may make no progress, by its own metrics, in seconds. After "
        "that the engine is ejected and probed. An engine that prefills whole prompts in one step "
        "(--no-enable-chunked-prefill) needs more than its longest prefill. Default: {default}. 0: no engine is "
        "ejected for this reason.",
        crd_default=False,
    )


@dataclass(frozen=True)
class SlowStart:
    """How an engine returns."""

    slow_start_seconds: _WaitOrZero = setting(
        10,
        "time for which a new engine gets less than its share",
        "Time for which a new engine receives less than its share of the requests, in seconds, because its caches are "
        "empty and it compiles its first shapes. The share rises linearly. 0: the full share at once.",
    )


@dataclass(frozen=True)
class Logs:
    """The log on stderr."""

    format: Annotated[names.LogFormat, Choice(names.LogFormat, "FORMAT")] = setting(
        names.LogFormat.TEXT,
        "format of the lines: Text or JSON",
        "Format of the lines. JSON: one object per line.",
        flag="--log-format",
    )
    slow_seconds: _WaitOrZero = setting(
        30,
        "log a request whose answer has not begun after S seconds, like a failed one; 0: log every request",
        "A request is slow if its answer has not begun after this many seconds. 0: every request is slow.",
    )


@dataclass(frozen=True)
class CORS:
    """Browsers' requests from pages of other origins."""

    allowed_origins: Origins = setting(
        (),
        "origins whose pages may read answers (CORS), for example https://chat.example.com; * for all; may be repeated",
        'Origins whose pages may send requests and read answers, for example https://chat.example.com; "*" means all. '
        "Empty: none.",
        flag="--cors-allowed-origins",
    )


@dataclass(frozen=True)
class Streams:
    """Streamed answers."""

    stream_keep_alive_seconds: Annotated[float | None, Seconds(1, 3600, optional=True)] = setting(
        None,
        "send a comment before the first event of a stream after each S seconds without a byte; the first comment "
        "commits the status to 200; 0: none",
        "Before the first event of a stream, the gateway sends the client a comment whenever it has sent no byte for "
        "this number of seconds. The first comment commits the answer to status 200: a later error is an event of the "
        "stream. Default: no comments.",
    )


@dataclass(frozen=True)
class SLO:
    """The service level objectives of a request."""

    ttft_milliseconds: _Milliseconds = setting(
        None,
        "longest time to first token; with --slo-tpot-milliseconds, a decode engine alone serves a request if it "
        "finishes the prompt before any prefill engine and its streams keep their TPOT; 0: none",
        "Longest TTFT (time to first token), in milliseconds. Late requests are still served. With tpotMilliseconds, "
        "a request is not split on two conditions: a decode engine would finish the prompt before any prefill engine, "
        "and its streams keep their TPOT. disaggregateAboveTokens then has no effect. Without tpotMilliseconds, only "
        "pdx bench uses this field. Default: no target.",
        flag="--slo-ttft-milliseconds",
    )
    tpot_milliseconds: _Milliseconds = setting(
        None,
        "longest time per output token; it limits the requests at each decode engine; 0: none",
        "Longest TPOT (mean time per output token after the first), in milliseconds. It limits the requests at each "
        "decode engine; further ones wait in the gateway's queue. Default: no target.",
        flag="--slo-tpot-milliseconds",
    )


@dataclass(frozen=True)
class Verification:
    """How often the gateway checks whether KV moves within its pairs."""

    period_seconds: _WaitOrZero = setting(
        40,
        "time between two transfer probes of an engine, which test whether KV moves to or from it; 0: none",
        "Seconds between two transfer probes of one engine. Each costs about 350 tokens of prefill. 0: no transfer "
        "probes.",
        flag="--verification-period-seconds",
    )


@dataclass(frozen=True)
class Tracing:
    """Traces of requests."""

    endpoint: Annotated[str, Text(512, ENDPOINT_RULES, "URL"), *ENDPOINT_RULES] = setting(
        REQUIRED,
        "OTLP receiver over HTTP that receives the spans, for example http://collector:4318",
        "URL of the OTLP receiver over HTTP, for example http://collector.observability:4318. Without a path, "
        "/v1/traces is added. Engines and gateway send their spans to it.",
        flag="--tracing-endpoint",
    )
    ratio: Annotated[float, Share()] = setting(
        0.1,
        "share of sampled requests; a request with a valid traceparent follows its sampled flag instead",
        "Share of the requests that are sampled. A request with a valid traceparent follows its sampled flag instead. "
        "The gateway also exports its own spans of requests that failed or were slow.",
        flag="--tracing-ratio",
    )


@dataclass(frozen=True)
class Keys:
    """Files of API keys. Changed files are read again."""

    clients: _File = setting(
        None,
        "clients that may use the gateway, as lines `sha256:HEX NAME [weight=N]`; a changed file is read again",
        flag=names.CLIENT_KEYS_FLAG,
    )
    engines: _File = setting(
        None,
        "the key that engines require (vLLM's --api-key); a changed file is read again",
        flag=names.ENGINE_KEY_FLAG,
    )


@dataclass(frozen=True)
class TLS:
    """Files of the serving port's certificate. Changed files are read again."""

    certificate: _File = setting(
        None,
        "certificate with its chain (PEM); changed files are read again, and open connections stay",
        flag=names.TLS_CERTIFICATE_FLAG,
    )
    key: _File = setting(
        None,
        "private key of the certificate (PEM, without a passphrase)",
        flag=names.TLS_KEY_FLAG,
    )
