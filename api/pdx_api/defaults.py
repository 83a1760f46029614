"""The defaults that fields of the PDDeployment and settings of the gateway share, each with its reason."""

from typing import Final

GATEWAY_REPOSITORY: Final = "ghcr.io/your--org/pdx/gateway"
"""Image of the gateway without its tag, which is PDX's version: what `make images` builds and the chart names. `make
generate` writes the owner from packaging/release.toml."""

CONNECT_SECONDS: Final = 3.0
"""To connect to an engine. Engines of one cluster answer in milliseconds."""
PREFILL_SECONDS: Final = 300.0
"""The whole prefill leg. A prompt of a million tokens takes minutes."""
HANDOFF_SECONDS: Final = 25.0
"""From P's answer until D has the KV. The lease is `LEASE_MARGIN_SECONDS` longer; after it P's blocks are free. In pull
orders a D renews the lease while the request is in its queue; in push orders it does not."""
LEASE_MARGIN_SECONDS: Final = 5.0
"""How much longer than the hand-off's deadline P pins blocks for D."""
FIRST_EVENT_SECONDS: Final = 600.0
"""The decode leg of a stream up to its first event, including the engine's queue."""
IDLE_SECONDS: Final = 300.0
"""Between two pieces of a stream. No engine decodes so slowly."""
TOTAL_SECONDS: Final = 3600.0
"""A whole request. Half a million tokens take an hour at 140 tokens a second."""

ATTEMPTS: Final = 3
"""Attempts of one request, at most. After the first event there is no further attempt."""
RETRY_PERCENT: Final = 20
"""Retries of the last ten seconds as a percentage of the requests. More failures than that are not accidental."""
MIN_RETRIES: Final = 10
"""Retries in ten seconds that are always allowed, so that a gateway with few requests retries too."""

IN_FLIGHT_PER_DECODE: Final = 0
"""Requests at one decode engine: as many as it runs at a time, by its metrics, and few more."""
IN_FLIGHT_PER_PREFILL: Final = 0
"""Requests at one prefill engine: as many as it runs at a time, by its metrics, and as many that wait."""
QUEUED_REQUESTS: Final = 1024
"""Requests that wait in one gateway."""
QUEUED_BYTES: Final = 256 * 1024 * 1024
"""Bytes of request bodies in one gateway, waiting or being sent."""
QUEUE_SECONDS: Final = 30.0
"""Longest wait in the queue. Most clients have given up by then."""
BODY_BYTES: Final = 64 * 1024 * 1024
"""Largest body of a request."""

SLOW_SECONDS: Final = 30.0
"""A request without an answer after this time is slow: engines prefill faster, and clients give up."""

TRACING_RATIO: Final = 0.1
"""The share of requests with traces: some requests of every kind, at a tenth of the cost."""

STALLED_SECONDS: Final = 30.0
"""Running requests without any progress. One step of an engine with chunked prefill takes a few seconds at most."""
CONSECUTIVE_ERRORS: Final = 5
"""Consecutive failures of an engine until it is ejected and probed."""
SLOW_START_SECONDS: Final = 10.0
"""How long a new engine receives less than its share: its caches are empty and it compiles its first shapes."""
ENGINE_DRAIN_SECONDS: Final = 600
"""For an engine that stops to finish its requests: answers of reasoning models take minutes."""
STARTUP_SECONDS: Final = 1800
"""For an engine to load; hundreds of GB of weights on slow storage take that long."""
POOL_GIB: Final = 4
"""A pool for some thousand prompts of a small model. Every node has this much memory."""
VERIFICATION_PERIOD_SECONDS: Final = 40.0
"""Between two transfer probes of an engine. A failure is detected within a minute, including 15 s for an answer. Each
probe costs about 350 tokens of prefill, under 0.1 % of an engine with 9,000 tokens a second."""
