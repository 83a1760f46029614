"""One sequence in the engine: a prompt, what has become of it, and how it ends."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pdx_sim.core.tokens import Digest, Tokens

KVParams = Mapping[str, Any]


class Leg(StrEnum):
    """What a request asks of the engine."""

    PLAIN = "plain"
    PREFILL = "prefill"
    DECODE = "decode"


class Finish(StrEnum):
    """vLLM's finish reasons."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt on its way through the engine. The core owns and changes it; the server only reads and hangs up."""

    internal_id: str
    """vLLM's own id, for example cmpl-<id>-0-<8 hex>."""
    prompt: Tokens
    digest: Digest
    """Of the KV in use: at first the prompt's own, after a load that of the KV loaded."""
    max_tokens: int
    leg: Leg = Leg.PLAIN
    params: KVParams = field(default_factory=dict)
    stops_at: int = 0
    """Tokens after which the answer ends by itself; 0 for never."""
    slowness: float = 1.0
    """Factor on every simulated time."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever `produced` or `finish` changes; shared by the sequences of one request."""
    produced: int = 0
    finish: Finish | None = None
    answer_params: KVParams | None = None
    """What P tells about its KV."""
    cached: int = 0
    """Prompt tokens whose KV came from outside."""
    left_at: float | None = None
    """When the client hung up, on the engine's clock."""
    arrived_at: float = 0.0
    """When it was taken in, on the engine's clock; likewise the next three."""
    begun_at: float = 0.0
    """When it was first computed."""
    first_at: float = 0.0
    """Its first token."""
    last_at: float = 0.0
    """Its latest token."""
    waits: bool = True
    """Whether it waits for blocks, a slot or KV, and so can be cancelled at once rather than at the next step."""
    held: bool = False
    """Whether its blocks outlive it: parked on P, or stranded on D."""
    task: asyncio.Task[None] | None = None

    @property
    def last_token(self) -> int:
        """Tokens it generates when nothing interrupts it."""
        return min(self.stops_at or self.max_tokens, self.max_tokens)

    @property
    def key(self) -> str:
        """The id under which both legs of a push meet: the internal id without its random end."""
        return meeting_key(self.internal_id)

    def end(self, finish: Finish) -> None:
        """Record how it ended, once, and wake the reader."""
        if self.finish is None:
            self.finish = finish
        self.changed.set()


def meeting_key(internal_id: str) -> str:
    """An internal id without its trailing -<8 hex>."""
    return internal_id.rpartition("-")[0]
