"""One sequence in the engine: a prompt, its progress, and how it ends."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pdx_sim.core.tokens import Digest, Tokens

KVParams = Mapping[str, Any]


class Leg(StrEnum):
    """The part of a request that the engine performs."""

    PLAIN = "plain"
    PREFILL = "prefill"
    DECODE = "decode"


class Finish(StrEnum):
    """vLLM's finish reasons."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"
    ERROR = "error"


class PauseMode(StrEnum):
    """What becomes of the sequences of an engine that is paused (vLLM 0.32, entrypoints/rl/online/api_router.py)."""

    ABORT = "abort"
    """They end."""
    WAIT = "wait"
    """Those that run go on to their end."""
    KEEP = "keep"
    """They freeze."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt in the engine. The core owns and changes it; the API only reads it and cancels it."""

    internal_id: str
    """vLLM's own id, for example cmpl-<id>-0-<8 hex>."""
    prompt: Tokens
    digest: Digest
    """Digest of the KV in use: of the prompt's own KV, or of the KV that was loaded."""
    max_tokens: int
    leg: Leg = Leg.PLAIN
    params: KVParams = field(default_factory=dict)
    stops_at: int = 0
    """Tokens after which the answer ends by itself; 0: never."""
    slowness: float = 1.0
    """Factor on every simulated time."""
    prefill_seconds: float = 0.0
    """Seconds that its prefill takes, whatever its length; 0: as long as its tokens need."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever `produced` or `finish` changes; shared by the sequences of one request."""
    produced: int = 0
    finish: Finish | None = None
    answer_params: KVParams | None = None
    """The kv_transfer_params that P answers."""
    cached: int = 0
    """Prompt tokens whose KV was loaded."""
    found: int = 0
    """Prompt tokens whose KV was in the engine's prefix cache."""
    disconnected_at: float | None = None
    """When the client disconnected, on the engine's clock."""
    received_at: float = 0.0
    """When the core received it, on the engine's clock; likewise the next three."""
    begun_at: float = 0.0
    """When its computation began."""
    first_at: float = 0.0
    """When its first token was generated."""
    last_at: float = 0.0
    """When its latest token was generated."""
    waits: bool = True
    """Whether it waits for blocks, a slot or KV: then it can be cancelled at once, otherwise at the next step."""
    load_begun: bool = False
    """Whether the connector has begun to load its KV."""
    held: bool = False
    """Whether its blocks outlive it: pinned on P, or stranded on D."""
    task: asyncio.Task[None] | None = None

    @property
    def last_token(self) -> int:
        """Number of tokens that it generates if nothing interrupts it."""
        return min(self.stops_at or self.max_tokens, self.max_tokens)

    @property
    def stopped(self) -> bool:
        """Whether its last token is a stop token. vLLM checks that before the length (v1/core/sched/utils.py)."""
        return 0 < self.stops_at <= self.produced

    @property
    def push_id(self) -> str:
        """See `push_id`."""
        return push_id(self.internal_id)

    def end(self, finish: Finish) -> None:
        """Record how it ended, once, and wake the API."""
        if self.finish is None:
            self.finish = finish
        self.changed.set()


def push_id(internal_id: str) -> str:
    """The id that both legs of a NIXL push share: an internal id without its trailing -<8 hex>."""
    return internal_id.rpartition("-")[0]
