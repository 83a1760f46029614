"""Decides how the KV blocks of a hand-off that ended early are freed: facts in, next step out. Pure.

`ROWS` is the whole decision. `Settlements` performs a step, reads the facts again, and repeats that until a step ends
the settlement. docs/settling.md shows the rows, and why engines need these steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pdx_proxy.handoff.situation import ANSWERED, NOT_READ, Decode, Kind, Notifier, Prefill, Situation
from pdx_proxy.telemetry.counters import Settlement


class Ask(Enum):
    """A step after which the facts are read again."""

    START_PREFILL = "send P its leg"
    AWAIT_PREFILL = "wait for P's end"
    STOP_PREFILL = "give P 1 s, then stop it"
    WATCH_DECODE = "wait until D has the KV"
    CLOSE_DECODE = "read what D waits for, and close its leg"


class Free(Enum):
    """A D leg that frees P's blocks. It ends the settlement as `released`, or as `lease` if it fails."""

    BY_REFUSED_LEG = "send a D a leg that it refuses"
    BY_SHORT_LEG = "send a D a leg of one token"


@dataclass(frozen=True, slots=True)
class CloseWhenOpen:
    """Close D's leg when its first event shows that it has the KV. Ends the settlement as `released`."""

    seconds: float | None
    """How long to wait; None: the deadline of a settlement."""
    otherwise: Settlement
    """The end if no event comes in time. If D's leg fails, the end is `lease`."""


@dataclass(frozen=True, slots=True)
class Substitute:
    """A P leg under the same transfer ID, so that an engine stops waiting. It ends the settlement as `finished`."""

    short: bool
    """Whether its prompt is one token. A D that waits would cache that KV under the client's prompt."""
    after_notice: bool
    """Whether D's leg is closed first, and D's notice gets time to reach P."""
    otherwise: Settlement
    """The end if P does not answer 200."""


@dataclass(frozen=True, slots=True)
class Done:
    """The settlement has ended."""

    result: Settlement | None
    """What is counted; None: nothing was held."""


Step = Ask | Free | CloseWhenOpen | Substitute | Done


@dataclass(frozen=True, slots=True)
class Row:
    """The step in some situations. A situation fits one row only."""

    kinds: frozenset[Kind]
    prefill: frozenset[Prefill]
    decode: frozenset[Decode]
    step: Step
    why: str
    """For docs/settling.md."""
    stream: bool | None = None
    """None: with and without a stream."""
    notifier: frozenset[Notifier] = frozenset(Notifier)

    def fits(self, situation: Situation) -> bool:
        """Whether the row is about the situation."""
        return (
            situation.kind in self.kinds
            and situation.prefill in self.prefill
            and situation.decode in self.decode
            and self.stream in (None, situation.stream)
            and situation.notifier in self.notifier
        )


def settle(situation: Situation) -> Step:
    """Return the next step; raises LookupError for a situation that cannot occur."""
    for row in ROWS:
        if row.fits(situation):
            return row.step
    raise LookupError(f"no row for {situation}")


_S = Settlement
_P = Prefill
_D = Decode
_PUSH: Final = (Kind.PUSH, Kind.NOTIFIED_PUSH)
_ENDED: Final = (_P.FINISHED, _P.DIED)
_FAILED: Final = (_P.FULL, _P.REJECTED, _P.BROKEN)
_NOT_BEGUN: Final = (_P.FULL, _P.REJECTED)
_UNSENT: Final = (_D.NOT_SENT, _D.UNREACHABLE)
_REPLIED: Final = (*ANSWERED, _D.REFUSED_BY_SERVER, _D.FAILED)
_SOME: Final = (Notifier.PAIR, Notifier.OTHER)
_NOBODY: Final = (Notifier.NOBODY,)
_MAY_HAVE_READ: Final = (_D.FULL, _D.BUSY, _D.FAILED, _D.LOST, _D.TIMED_OUT)
_FIRST_KV_SECONDS: Final = 1.0
"""How long the first KV from a P to a D may take, handshake included."""
_INTAKE_SECONDS: Final = 0.5
"""How long D's HTTP server may take to pass a request to its engine."""


def _row(
    kinds: Kind | tuple[Kind, ...],
    prefill: Prefill | tuple[Prefill, ...],
    decode: Decode | tuple[Decode, ...] | frozenset[Decode],
    step: Step,
    why: str,
    stream: bool | None = None,
    notifier: tuple[Notifier, ...] = tuple(Notifier),
) -> Row:
    return Row(
        frozenset(kinds if isinstance(kinds, tuple) else (kinds,)),
        frozenset(prefill if isinstance(prefill, tuple) else (prefill,)),
        frozenset((decode,) if isinstance(decode, Decode) else decode),
        step,
        why,
        stream,
        frozenset(notifier),
    )


def _pull() -> Iterator[Row]:
    """D reads from P. Only a D that has exchanged KV with P can notify it."""
    yield _row(Kind.PULL, _P.NOT_SENT, _D.NOT_SENT, Done(None), "No engine has received anything.")
    yield _row(Kind.PULL, _P.RUNNING, _D.NOT_SENT, Ask.STOP_PREFILL, "A P that is nearly done finishes anyway.")
    yield _row(Kind.PULL, _FAILED, _D.NOT_SENT, Done(_S.PREFILL_STOPPED), "A P that has not finished keeps no KV.")
    yield _row(
        Kind.PULL,
        _P.FINISHED,
        _D.OPEN,
        CloseWhenOpen(_INTAKE_SECONDS, _S.RELEASED),
        "D notifies P when its leg is closed, as soon as D's engine has received the leg.",
        notifier=(Notifier.PAIR,),
    )
    yield _row(
        Kind.PULL,
        _P.FINISHED,
        _D.OPEN,
        Free.BY_REFUSED_LEG,
        "This D's notice would not reach P; the other D's does.",
        notifier=(Notifier.OTHER,),
    )
    yield _row(
        Kind.PULL,
        _P.FINISHED,
        _D.OPEN,
        CloseWhenOpen(None, _S.LEASE),
        "D's notice would not reach P, but P's blocks are free when D has read them.",
        stream=True,
        notifier=_NOBODY,
    )
    yield _row(
        Kind.PULL,
        _P.FINISHED,
        _D.OPEN,
        CloseWhenOpen(_FIRST_KV_SECONDS, _S.RELEASED),
        "Without a stream no event shows that D has read the blocks, so D gets the time for that.",
        stream=False,
        notifier=_NOBODY,
    )
    yield _row(
        Kind.PULL,
        _P.FINISHED,
        _D.REFUSED,
        Done(None),
        "D's engine has notified P.",
        notifier=(Notifier.PAIR,),
    )
    yield _row(
        Kind.PULL,
        _P.FINISHED,
        _D.REFUSED,
        Free.BY_REFUSED_LEG,
        "D's notice did not reach P.",
        notifier=(Notifier.OTHER,),
    )
    yield _row(
        Kind.PULL,
        _P.FINISHED,
        NOT_READ - {_D.REFUSED},
        Free.BY_REFUSED_LEG,
        "A leg that D refuses costs no work.",
        notifier=_SOME,
    )
    yield _row(
        Kind.PULL,
        _P.FINISHED,
        NOT_READ,
        Free.BY_SHORT_LEG,
        "No D can notify P, but each D can read the blocks.",
        notifier=_NOBODY,
    )
    yield _row(
        Kind.PULL,
        _P.FINISHED,
        _MAY_HAVE_READ,
        Free.BY_REFUSED_LEG,
        "A leg that D refuses reads nothing, so it is right even if the blocks are free already.",
        notifier=_SOME,
    )
    yield _row(
        Kind.PULL,
        _P.FINISHED,
        _MAY_HAVE_READ,
        Done(_S.LEASE),
        "If the blocks are free already, another read would return another request's KV.",
        notifier=_NOBODY,
    )


def _pool() -> Iterator[Row]:
    """P keeps nothing for a D."""
    finishes = Kind.UNSTOPPABLE_POOL
    yield _row((Kind.POOL, finishes), _P.NOT_SENT, _D.NOT_SENT, Done(None), "No engine has received anything.")
    yield _row(Kind.POOL, _P.RUNNING, _D.NOT_SENT, Done(_S.PREFILL_STOPPED), "P stops when its leg is closed.")
    yield _row(finishes, _P.RUNNING, _D.NOT_SENT, Ask.AWAIT_PREFILL, "P's engine may die if it is stopped.")
    yield _row(finishes, _P.FINISHED, _D.NOT_SENT, Done(_S.FINISHED), "Later requests find the KV in the pool.")
    yield _row(finishes, _FAILED, _D.NOT_SENT, Done(_S.PREFILL_STOPPED), "P has ended without a result.")


def _push_before_prefill() -> Iterator[Row]:
    """P has not got its leg."""
    yield _row(_PUSH, _P.NOT_SENT, _D.OPEN, Ask.START_PREFILL, "D waits for P's write, without a timeout.")
    yield _row(
        Kind.NOTIFIED_PUSH,
        _P.NOT_SENT,
        ANSWERED,
        Substitute(short=True, after_notice=False, otherwise=_S.LEASE),
        "D has notified P, which keeps a place for D until it gets a leg.",
    )
    yield _row(Kind.PUSH, _P.NOT_SENT, ANSWERED, Done(None), "D does not wait, and P has received nothing.")
    yield _row(
        _PUSH,
        _P.NOT_SENT,
        (*_UNSENT, _D.REFUSED_BY_SERVER, _D.FAILED, _D.LOST, _D.TIMED_OUT),
        Done(None),
        "No engine waits for the other.",
    )


def _push_while_prefill() -> Iterator[Row]:
    """P has its leg."""
    yield _row(
        _PUSH,
        _P.RUNNING,
        (_D.OPEN, _D.LOST, _D.TIMED_OUT),
        Ask.AWAIT_PREFILL,
        "D may wait for P's write: if P is stopped, nothing wakes D.",
    )
    yield _row(
        Kind.NOTIFIED_PUSH, _P.RUNNING, _REPLIED, Ask.AWAIT_PREFILL, "P has to finish its leg before it forgets D."
    )
    yield _row(Kind.PUSH, _P.RUNNING, _REPLIED, Ask.STOP_PREFILL, "D does not wait.")
    yield _row(_PUSH, _P.RUNNING, _UNSENT, Ask.STOP_PREFILL, "D does not wait.")


def _push_after_prefill() -> Iterator[Row]:
    """P has finished."""
    yield _row(_PUSH, _P.FINISHED, _D.OPEN, Ask.WATCH_DECODE, "D gets its KV, and is closed then.")
    yield _row(_PUSH, _P.DIED, (_D.OPEN, _D.WITHOUT_KV), Ask.CLOSE_DECODE, "P's write may not have ended.")
    yield _row(_PUSH, _ENDED, _D.LATE, Ask.CLOSE_DECODE, "If D still queues the request, its KV will be gone.")
    yield _row(_PUSH, _ENDED, (_D.HAS_KV, _D.TIMED_OUT), Done(_S.FINISHED), "D has read what P has written.")
    yield _row(Kind.NOTIFIED_PUSH, _ENDED, ANSWERED, Done(_S.RELEASED), "D has notified P, and P has had its leg.")
    yield _row(Kind.PUSH, _ENDED, ANSWERED, Free.BY_SHORT_LEG, "P keeps its blocks for a D that does not come.")
    unread = (*_UNSENT, _D.REFUSED_BY_SERVER, _D.FAILED, _D.LOST)
    yield _row(Kind.PUSH, _ENDED, unread, Free.BY_SHORT_LEG, "P keeps its blocks for a D that does not come.")
    yield _row(Kind.NOTIFIED_PUSH, _ENDED, unread, Free.BY_REFUSED_LEG, "P keeps its blocks until D notifies it.")
    yield _row(Kind.PUSH, _P.FINISHED, _D.WITHOUT_KV, Free.BY_SHORT_LEG, "D has ended without P's blocks.")
    yield _row(Kind.NOTIFIED_PUSH, _P.FINISHED, _D.WITHOUT_KV, Free.BY_REFUSED_LEG, "D has ended without P's blocks.")
    silent = (_D.SILENT, _D.UNREPORTED)
    yield _row(Kind.PUSH, _ENDED, silent, Done(_S.FINISHED), "No request of D waits for KV any more.")
    yield _row(
        Kind.NOTIFIED_PUSH,
        _ENDED,
        silent,
        Done(_S.FINISHED),
        "No request of D waits for KV any more.",
        stream=True,
    )
    yield _row(
        Kind.NOTIFIED_PUSH,
        _ENDED,
        _D.SILENT,
        Substitute(short=True, after_notice=True, otherwise=_S.LEASE),
        "A closed leg without a stream makes D notify P, as if D had refused it.",
        stream=False,
    )
    yield _row(
        Kind.NOTIFIED_PUSH,
        _ENDED,
        _D.UNREPORTED,
        Done(_S.LEASE),
        "D may be stopped, and sends no notice then.",
        stream=False,
    )
    yield _row(_PUSH, _P.DIED, _D.CLOSED_QUEUED, Done(_S.PREFILL_STOPPED), "D has allocated no blocks.")
    yield _row(_PUSH, _ENDED, _D.CLOSED_WAITING, Done(_S.DECODE_LOST), "P's write never comes.")
    yield _row(Kind.PUSH, _P.FINISHED, _D.CLOSED_QUEUED, Free.BY_SHORT_LEG, "P keeps its blocks.")
    yield _row(Kind.NOTIFIED_PUSH, _P.FINISHED, _D.CLOSED_QUEUED, Done(_S.RELEASED), "D notifies P.")


def _push_after_failed_prefill() -> Iterator[Row]:
    """P has failed. Where D notifies P, a P that has not begun may get a leg again."""
    yield _row(_PUSH, _FAILED, _D.OPEN, Ask.CLOSE_DECODE, "Only a D that has scheduled the request holds blocks.")
    yield _row(
        Kind.NOTIFIED_PUSH,
        _NOT_BEGUN,
        ANSWERED,
        Substitute(short=True, after_notice=False, otherwise=_S.LEASE),
        "D has notified P, which keeps a place for D until it gets a leg.",
    )
    yield _row(Kind.NOTIFIED_PUSH, _P.BROKEN, ANSWERED, Done(_S.LEASE), "A P that has begun must get no second leg.")
    yield _row(Kind.PUSH, _FAILED, ANSWERED, Done(_S.LEASE), "P may have finished although its answer is lost.")
    waits = (_D.TIMED_OUT, _D.CLOSED_WAITING)
    whole = Substitute(short=False, after_notice=False, otherwise=_S.DECODE_LOST)
    waking = "D waits for P's write under this ID."
    yield _row(Kind.NOTIFIED_PUSH, _NOT_BEGUN, _D.TIMED_OUT, whole, waking)
    yield _row(Kind.NOTIFIED_PUSH, _NOT_BEGUN, _D.CLOSED_WAITING, whole, waking, stream=True)
    yield _row(
        Kind.NOTIFIED_PUSH,
        _NOT_BEGUN,
        _D.CLOSED_WAITING,
        Substitute(short=False, after_notice=True, otherwise=_S.DECODE_LOST),
        f"{waking} Its notice must arrive before P's leg has ended.",
        stream=False,
    )
    yield _row(Kind.NOTIFIED_PUSH, _P.BROKEN, waits, Done(_S.DECODE_LOST), "No second leg wakes D.")
    yield _row(Kind.PUSH, _FAILED, waits, Done(_S.DECODE_LOST), "No second leg wakes D.")
    yield _row(
        Kind.NOTIFIED_PUSH,
        _P.FULL,
        _D.CLOSED_QUEUED,
        Substitute(short=False, after_notice=True, otherwise=_S.LEASE),
        "D notifies P. Its prompt is whole: D may have allocated blocks since it reported its queue.",
    )
    yield _row(Kind.NOTIFIED_PUSH, _P.REJECTED, _D.CLOSED_QUEUED, Done(_S.LEASE), "P would refuse the prompt again.")
    stopped = Done(_S.PREFILL_STOPPED)
    yield _row(Kind.NOTIFIED_PUSH, _P.BROKEN, _D.CLOSED_QUEUED, stopped, "D has allocated no blocks.")
    yield _row(Kind.PUSH, _FAILED, _D.CLOSED_QUEUED, stopped, "D has allocated no blocks.")
    ended = (*_UNSENT, _D.REFUSED_BY_SERVER, _D.FAILED, _D.LOST, _D.HAS_KV, _D.WITHOUT_KV)
    yield _row(_PUSH, _FAILED, ended, stopped, "Neither engine holds anything.")


ROWS: Final[tuple[Row, ...]] = (
    *_pull(),
    *_pool(),
    *_push_before_prefill(),
    *_push_while_prefill(),
    *_push_after_prefill(),
    *_push_after_failed_prefill(),
)
