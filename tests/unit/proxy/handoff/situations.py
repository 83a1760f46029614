"""The scripts of hand-offs: who answers what and when, and when the client leaves.

`scripts` draws them at random, from a fixed seed, so that each program and each commit runs the same ones.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import Any, Final

from pdx_api.names import Order, PrefillFailure


class Wiring(StrEnum):
    """The connector and the order of the pair."""

    PULL = "NIXL PrefillFirst"
    PUSH_DECODE_FIRST = "NIXL DecodeFirst"
    PUSH_CONCURRENT = "NIXL Concurrent"
    MOONCAKE_PREFILL_FIRST = "Mooncake PrefillFirst"
    MOONCAKE_DECODE_FIRST = "Mooncake DecodeFirst"
    MOONCAKE_CONCURRENT = "Mooncake Concurrent"
    POOL = "SharedStorage PrefillFirst"
    POOL_THAT_FINISHES = "LMCache PrefillFirst"

    @property
    def connector(self) -> str:
        """The connector's name."""
        return self.value.partition(" ")[0]

    @property
    def order(self) -> Order:
        """The order of the legs."""
        return Order(self.value.partition(" ")[2])


class Answers(StrEnum):
    """How an engine answers a leg."""

    OK = "ok"
    NO_PARAMS = "no params"
    """200 without parameters, and not ended by its length."""
    OTHER_START = "other start"
    """200 with the identity of another start of the engine."""
    REFUSED = "400"
    REFUSED_BY_SERVER = "400 by server"
    FULL = "503"
    BUSY = "503 retry-after"
    BROKEN = "500"
    ABORTED = "aborted"
    LOST = "lost"
    NEVER = "never"
    GONE = "gone"
    """It refuses every connection."""


class Metrics(StrEnum):
    """What the decode engine's metrics show while the gateway settles."""

    SILENT = "silent"
    IDLE = "idle"
    DEFERRED = "deferred"
    CAPACITY = "capacity"
    DEFERRED_UNTIL_4 = "deferred until 4 s"

    def page(self, seconds: float) -> bytes:
        """Return the page, `seconds` after the request began."""
        waits = self is Metrics.DEFERRED or (self is Metrics.DEFERRED_UNTIL_4 and seconds < 4.0)
        line = 'vllm:num_requests_waiting_by_reason{reason="%s"} %d\n'
        return ("\n" + line % ("capacity", self is Metrics.CAPACITY) + line % ("deferred", waits)).encode()


class Handshake(StrEnum):
    """Which decode engine has exchanged KV with the prefill engine."""

    NONE = "none"
    PAIR = "the pair's"
    OTHER = "another"


@dataclass(frozen=True, slots=True)
class Script:
    """One hand-off. Times are seconds from its beginning, or from the leg's beginning for an answer."""

    wiring: Wiring
    stream: bool
    prefill: tuple[float, Answers]
    again: Answers
    """The answer to a second whole leg."""
    decode: tuple[float, Answers]
    settling: Answers
    """The answer to legs that only settle."""
    metrics: Metrics
    handshake: Handshake
    dies_after: float | None
    """How long after its answer the prefill engine dies."""
    leaves_at: float | None
    """When the client leaves."""
    policy: PrefillFailure
    budget: bool
    """Whether the retry budget allows a retry."""

    def __str__(self) -> str:
        prefill, decode = (f"{answer}@{after:g}" for after, answer in (self.prefill, self.decode))
        facts = (
            f"{self.wiring}{' stream' if self.stream else ''}",
            f"P {prefill}, then {self.again}{'' if self.dies_after is None else f', dies {self.dies_after:g} later'}",
            f"D {decode}, {self.metrics}, handshake {self.handshake}",
            f"settling {self.settling}, {self.policy}{'' if self.budget else ', no budget'}",
            "" if self.leaves_at is None else f"client leaves at {self.leaves_at:g}",
        )
        return "; ".join(filter(None, facts))


_PREFILLS: Final = (
    *[(1.0, Answers.OK)] * 5,
    *[(1.0, Answers.FULL)] * 2,
    *(
        (1.0, answer)
        for answer in Answers
        if answer not in (Answers.OK, Answers.FULL, Answers.NEVER, Answers.REFUSED_BY_SERVER)
    ),
    (inf, Answers.NEVER),
)
_AGAIN: Final = (Answers.OK, Answers.OK, Answers.FULL, Answers.LOST, Answers.REFUSED, Answers.GONE)
_DECODES: Final = (
    (0.1, Answers.OK),
    (3.0, Answers.OK),
    (40.0, Answers.OK),
    (0.05, Answers.REFUSED),
    (2.0, Answers.REFUSED),
    (0.05, Answers.REFUSED_BY_SERVER),
    (2.0, Answers.REFUSED_BY_SERVER),
    (0.05, Answers.FULL),
    (2.0, Answers.FULL),
    (2.0, Answers.BUSY),
    (0.05, Answers.BROKEN),
    (2.0, Answers.BROKEN),
    (0.3, Answers.LOST),
    (1.05, Answers.LOST),
    (2.0, Answers.LOST),
    (inf, Answers.NEVER),
    (inf, Answers.NEVER),
    (0.0, Answers.GONE),
)
_SETTLING: Final = (Answers.OK, Answers.REFUSED, Answers.LOST)
_LEAVES: Final = (None, None, None, 0.02, 0.5, 1.02, 1.5, 2.5)
_DIES: Final = (None, None, None, 0.02, 1.2)


_LEAD: Final = 0.004
"""Seconds after D's leg at which P has not got its own in order DecodeFirst."""
_NEVER: Final = (inf, Answers.NEVER)


def _rare() -> Iterator[Script]:
    """Yield scripts of situations that chance hardly ever reaches."""
    usual = Script(
        Wiring.PULL,
        True,
        (1.0, Answers.OK),
        Answers.OK,
        (0.1, Answers.OK),
        Answers.OK,
        Metrics.IDLE,
        Handshake.NONE,
        None,
        None,
        PrefillFailure.RETRY,
        True,
    )
    for settling in (Answers.OK, Answers.REFUSED):
        for wiring in (Wiring.PUSH_DECODE_FIRST, Wiring.MOONCAKE_DECODE_FIRST):
            for answer in (Answers.REFUSED, Answers.REFUSED_BY_SERVER, Answers.FULL, Answers.BUSY, Answers.BROKEN):
                yield replace(usual, wiring=wiring, decode=(_LEAD, answer), settling=settling)
            yield replace(usual, wiring=wiring, leaves_at=_LEAD, settling=settling)
        for again in (Answers.FULL, Answers.REFUSED):  # D's deadline of 30 s ends before P's second leg
            late = replace(usual, prefill=(16.0, Answers.FULL), again=again, decode=_NEVER, settling=settling)
            yield replace(late, wiring=Wiring.MOONCAKE_CONCURRENT)
        for handshake in Handshake:
            for stream in (True, False):
                waits = replace(usual, stream=stream, handshake=handshake, settling=settling)
                yield replace(waits, decode=(3.0, Answers.OK), leaves_at=1.5)
                yield replace(waits, decode=(0.1, Answers.REFUSED))
                yield replace(waits, decode=(0.1, Answers.REFUSED_BY_SERVER))
        for wiring in Wiring:
            yield replace(usual, wiring=wiring, leaves_at=0.0, settling=settling)
            for metrics in Metrics:
                late = replace(usual, wiring=wiring, decode=(40.0, Answers.OK), metrics=metrics, settling=settling)
                yield late
                yield replace(late, stream=False, leaves_at=1.5)


def draw(choose: Callable[[Any], Any]) -> Script:
    """Draw a script; `choose` selects one of several values."""
    return Script(
        choose(tuple(Wiring)),
        choose((False, True)),
        choose(_PREFILLS),
        choose(_AGAIN),
        choose(_DECODES),
        choose(_SETTLING),
        choose(tuple(Metrics)),
        choose(tuple(Handshake)),
        choose(_DIES),
        choose(_LEAVES),
        choose((PrefillFailure.RETRY, PrefillFailure.LOCAL)),
        choose((True, True, False)),
    )


def scripts(number: int, seed: int = 37) -> Iterator[Script]:
    """Yield so many different scripts, the rare ones first."""
    choose, seen = random.Random(seed).choice, dict.fromkeys(_rare())
    yield from tuple(seen)
    while len(seen) < number:
        script = draw(choose)
        if script not in seen:
            seen[script] = None
            yield script
