"""Defaults that the object's fields and the gateway's settings share, each with its reason."""

from typing import Final

CONNECT_SECONDS: Final = 3.0
"""TCP connection to an engine. Engines of one cluster answer in milliseconds; longer means gone."""
PREFILL_SECONDS: Final = 300.0
"""P's whole leg. A prompt of a million tokens takes minutes."""
HANDOFF_SECONDS: Final = 25.0
"""P's answer to D's first event. Engines get a lease `LEASE_MARGIN_SECONDS` longer: after it P's blocks are gone."""
LEASE_MARGIN_SECONDS: Final = 5.0
"""How much longer than the hand-off's deadline P keeps blocks for D (NIXL's kv_lease_duration)."""
FIRST_EVENT_SECONDS: Final = 600.0
"""D's leg to the first event of its body, queueing included; also a whole request without streaming."""
IDLE_SECONDS: Final = 300.0
"""A stream without a byte of its engine. Nothing decodes that slowly."""
TOTAL_SECONDS: Final = 3600.0
"""A whole request. Half a million tokens take an hour at 140 tokens a second."""

ATTEMPTS: Final = 3
"""Most times a request is tried before the first event of its body."""
RETRY_PERCENT: Final = 20
"""Retries of the last ten seconds as a share of its requests: what fails more often is no accident."""
RETRIES_FREE: Final = 10
"""Retries in ten seconds that the share does not apply to, so that a quiet gateway retries too."""

IN_FLIGHT_PER_DECODE: Final = 512
"""Requests sent to one decode engine at a time. vLLM runs 256 sequences by default; as many wait in its queue."""
QUEUED_REQUESTS: Final = 1024
"""Requests that wait in one gateway."""
QUEUED_BYTES: Final = 256 * 1024 * 1024
"""Bodies held in one gateway, waiting or being sent."""
QUEUE_SECONDS: Final = 30.0
"""Longest wait in the queue. Clients that wait longer have mostly given up."""
BODY_BYTES: Final = 64 * 1024 * 1024
"""Largest body of a request."""

SLOW_SECONDS: Final = 30.0
"""From when on a request is slow whose answer has not begun: clients give up, and engines prefill faster than that."""

FAILURES_IN_A_ROW: Final = 5
"""Requests that an engine fails one after the other, until it is left out and probed."""
SLOW_START_SECONDS: Final = 10.0
"""How long a new engine gets less than its share: its caches are empty and its first shapes compile."""
POOL_GIB: Final = 4
"""A pool for some thousand prompts of a small model, which no node misses."""
CANARY_SECONDS: Final = 40.0
"""Between two canaries of an engine: a break is seen within a minute, 15 s for an answer included. Each costs it about
350 tokens of prefill, under 0.1 % of what 9,000 tokens a second can do."""
