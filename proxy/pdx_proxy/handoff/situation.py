"""What is true of a hand-off that ended early: the facts that decide how its KV blocks are freed. Pure."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from pdx_api.connectors.families import Family, Pool, Pull, Settles
from pdx_proxy.handoff.failures import FULL, has_answered, reached_engine
from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.failures import (
    BadAnswer,
    ConnectFailure,
    DeadlineExceeded,
    EngineBusy,
    EngineFailure,
)


class Kind(Enum):
    """How the connector moves KV, and what its engines report to each other."""

    PULL = "pull"
    POOL = "pool"
    UNSTOPPABLE_POOL = "pool that must finish"
    """A pool whose prefill engine may die if it is stopped."""
    PUSH = "push"
    """D does not notify P of a leg that it refuses: a D leg under the same transfer ID frees P's blocks."""
    NOTIFIED_PUSH = "push with notices"
    """P then waits for one more P leg under the same transfer ID, unless it has had one."""


class Prefill(Enum):
    """What is true of P's leg."""

    NOT_SENT = "not sent"
    RUNNING = "running"
    FINISHED = "finished"
    """P keeps the KV."""
    DIED = "died"
    """P finished, and then P was lost."""
    FULL = "full"
    """P refused its leg with a 503: the same leg may succeed later."""
    REJECTED = "rejected"
    """P refused its leg with a 4xx: P would refuse the same leg again."""
    BROKEN = "broken"
    """The leg failed after P's engine may have received it."""


class Decode(Enum):
    """What is true of D's leg."""

    NOT_SENT = "not sent"
    UNREACHABLE = "unreachable"
    """D accepted no connection, so it has no leg."""
    OPEN = "open"
    """D has not answered."""
    REFUSED = "refused"
    """D's engine refused the leg with a 4xx."""
    REFUSED_BY_SERVER = "refused by its server"
    """D's HTTP server refused the leg, so D's engine never received it."""
    FULL = "full"
    """D answered 503."""
    BUSY = "busy"
    """D answered 429 or 503 with `Retry-After`."""
    FAILED = "failed"
    """D answered that it failed."""
    LOST = "lost"
    """The connection ended. D may still wait for KV."""
    TIMED_OUT = "timed out"
    """The leg is closed. D may still wait for KV."""
    LATE = "late"
    """D has not answered, and P's lease is about to end."""
    HAS_KV = "has the KV"
    WITHOUT_KV = "without the KV"
    """The leg ended, and D has not loaded the KV."""
    SILENT = "silent"
    """D has not answered in the time that it had to receive the KV."""
    UNREPORTED = "unreported"
    """The same, and its metrics have not been read."""
    CLOSED_QUEUED = "closed in its queue"
    """The leg was closed before D allocated blocks for it."""
    CLOSED_WAITING = "closed while it waited"
    """The leg was closed after D had allocated blocks for the KV."""


class Notifier(Enum):
    """In pull orders: which D has exchanged KV with P, so that P receives its notice when it refuses a leg."""

    PAIR = "the pair's D"
    OTHER = "another D"
    NOBODY = "no D"


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts."""

    kind: Kind
    stream: bool
    prefill: Prefill
    decode: Decode
    notifier: Notifier = Notifier.NOBODY


NOT_READ: Final = frozenset({Decode.NOT_SENT, Decode.UNREACHABLE, Decode.REFUSED, Decode.REFUSED_BY_SERVER})
"""D has read none of P's blocks."""
AVOIDED: Final = frozenset({Decode.UNREACHABLE, Decode.BUSY, Decode.LOST, Decode.TIMED_OUT})
"""D may not answer another leg."""
ANSWERED: Final = frozenset({Decode.REFUSED, Decode.FULL, Decode.BUSY})
"""D's engine accepted no request. In families where D notifies P, it has done so."""


def kind_of(family: Family) -> Kind:
    """Return how the connector's family settles."""
    if isinstance(family, Pull):
        return Kind.PULL
    if isinstance(family, Pool):
        return Kind.POOL if family.stops_prefill else Kind.UNSTOPPABLE_POOL
    return Kind.NOTIFIED_PUSH if family.settles is Settles.BY_PREFILL_LEG else Kind.PUSH


def prefill_after(failure: Exception | None) -> Prefill:
    """Classify the failure of a P's leg; None: an error of the gateway itself ended it."""
    if failure is None:
        return Prefill.BROKEN
    if has_answered(failure, (FULL,)):
        return Prefill.FULL
    return Prefill.REJECTED if has_answered(failure, range(400, 500)) else Prefill.BROKEN


def decode_after(failure: EngineFailure) -> Decode:
    """Classify the failure of a D's leg."""
    if isinstance(failure, EngineBusy):
        return Decode.BUSY
    if has_answered(failure, (FULL,)):
        return Decode.FULL
    if isinstance(failure, DeadlineExceeded):
        return Decode.TIMED_OUT
    if isinstance(failure, ConnectFailure):
        return Decode.UNREACHABLE
    return Decode.FAILED if isinstance(failure, BadAnswer) else Decode.LOST


def decode_after_refusal(answer: Answer) -> Decode:
    """Classify a D's error answer by its body. An error event does not show whether D has read blocks."""
    if answer.refused:
        return Decode.FAILED
    body = answer.body
    return Decode.REFUSED if reached_engine(body) else Decode.REFUSED_BY_SERVER
