"""Decides how the KV blocks of a hand-off that ended early are freed: facts in, next step out. Pure.

`ROWS` is the whole decision. `Settlements` performs a step, reads the facts again, and repeats that until a step ends
the settlement. docs/settling.md shows the rows, and why engines need these steps.
"""

from collections.abc import Iterable, Iterator
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


_PULL, _PUSH, _NOTIFIED, _POOL, _UNSTOPPABLE = (
    Kind.PULL,
    Kind.PUSH,
    Kind.NOTIFIED_PUSH,
    Kind.POOL,
    Kind.UNSTOPPABLE_POOL,
)
_EITHER_PUSH: Final = (_PUSH, _NOTIFIED)
_P, _D = Prefill, Decode
_ENDED: Final = (_P.FINISHED, _P.DIED)
_FAILED: Final = (_P.FULL, _P.REJECTED, _P.BROKEN)
_NOT_BEGUN: Final = (_P.FULL, _P.REJECTED)
_UNSENT: Final = (_D.NOT_SENT, _D.UNREACHABLE)
_ABSENT: Final = (*_UNSENT, _D.REFUSED_BY_SERVER, _D.FAILED, _D.LOST)
_REPLIED: Final = (*ANSWERED, _D.REFUSED_BY_SERVER, _D.FAILED)
_MAY_HAVE_READ: Final = (_D.FULL, _D.BUSY, _D.FAILED, _D.LOST, _D.TIMED_OUT)
_SILENT: Final = (_D.SILENT, _D.UNREPORTED)
_WAITS: Final = (_D.TIMED_OUT, _D.CLOSED_WAITING)
_PAIR, _OTHER, _NOBODY = Notifier.PAIR, Notifier.OTHER, Notifier.NOBODY

_NOTHING: Final = Done(None)
_STOPPED: Final = Done(Settlement.PREFILL_STOPPED)
_FINISHED: Final = Done(Settlement.FINISHED)
_RELEASED: Final = Done(Settlement.RELEASED)
_LEASE: Final = Done(Settlement.LEASE)
_LOST: Final = Done(Settlement.DECODE_LOST)
_CLOSE_AFTER_INTAKE: Final = CloseWhenOpen(0.5, Settlement.RELEASED)
"""After the time in which D's HTTP server passes a request to its engine."""
_CLOSE_AFTER_FIRST_KV: Final = CloseWhenOpen(1.0, Settlement.RELEASED)
"""After the time that the first KV from a P to a D takes, handshake included."""
_CLOSE_AFTER_EVENT: Final = CloseWhenOpen(None, Settlement.LEASE)
_SHORT: Final = Substitute(short=True, after_notice=False, otherwise=Settlement.LEASE)
_SHORT_AFTER_NOTICE: Final = Substitute(short=True, after_notice=True, otherwise=Settlement.LEASE)
_WHOLE: Final = Substitute(short=False, after_notice=False, otherwise=Settlement.DECODE_LOST)
_WHOLE_AFTER_NOTICE: Final = Substitute(short=False, after_notice=True, otherwise=Settlement.DECODE_LOST)
_WHOLE_FOR_QUEUED: Final = Substitute(short=False, after_notice=True, otherwise=Settlement.LEASE)

_PREFILLED_UNREAD: Final = "If P lives, P keeps its blocks for a D that does not come."
_UNHELD: Final = "D has allocated no blocks."
_PLACE: Final = "D has notified P, so P keeps a place for D until P gets a leg."


def _pull() -> Iterator[Row]:
    """D reads from P. Only a D that has exchanged KV with P can notify it."""
    yield _row(_PULL, _P.NOT_SENT, _D.NOT_SENT, _NOTHING, "No engine has received anything.")
    yield _row(_PULL, _P.RUNNING, _D.NOT_SENT, Ask.STOP_PREFILL, "A P that is nearly done finishes anyway.")
    yield _row(_PULL, _FAILED, _D.NOT_SENT, _STOPPED, "A P that has not finished keeps no KV.")
    why = "If D's engine has received its leg, D notifies P when the gateway closes this leg."
    yield _row(_PULL, _P.FINISHED, _D.OPEN, _CLOSE_AFTER_INTAKE, why, notifier=_PAIR)
    why = "A notice of the pair's D would not reach P. A notice of the other D reaches P."
    yield _row(_PULL, _P.FINISHED, _D.OPEN, Free.BY_REFUSED_LEG, why, notifier=_OTHER)
    why = "A notice of D would not reach P, but P frees its blocks when D has read them."
    yield _row(_PULL, _P.FINISHED, _D.OPEN, _CLOSE_AFTER_EVENT, why, stream=True, notifier=_NOBODY)
    why = "Without a stream, no event shows that D has read P's blocks. Reading takes at most 1 s."
    yield _row(_PULL, _P.FINISHED, _D.OPEN, _CLOSE_AFTER_FIRST_KV, why, stream=False, notifier=_NOBODY)
    yield _row(_PULL, _P.FINISHED, _D.REFUSED, _NOTHING, "D's engine has notified P.", notifier=_PAIR)
    why = "D's notice did not reach P."
    yield _row(_PULL, _P.FINISHED, _D.REFUSED, Free.BY_REFUSED_LEG, why, notifier=_OTHER)
    why = "An invalid leg costs D no work."
    yield _row(_PULL, _P.FINISHED, NOT_READ - {_D.REFUSED}, Free.BY_REFUSED_LEG, why, notifier=(_PAIR, _OTHER))
    why = "No D can notify P, but each D can read the blocks."
    yield _row(_PULL, _P.FINISHED, NOT_READ, Free.BY_SHORT_LEG, why, notifier=_NOBODY)
    why = "D reads no blocks for an invalid leg, so the leg does no harm if P's blocks are free already."
    yield _row(_PULL, _P.FINISHED, _MAY_HAVE_READ, Free.BY_REFUSED_LEG, why, notifier=(_PAIR, _OTHER))
    why = "If P's blocks are free already, D would read another request's KV from them."
    yield _row(_PULL, _P.FINISHED, _MAY_HAVE_READ, _LEASE, why, notifier=_NOBODY)


def _pool() -> Iterator[Row]:
    """P keeps nothing for a D."""
    yield _row((_POOL, _UNSTOPPABLE), _P.NOT_SENT, _D.NOT_SENT, _NOTHING, "No engine has received anything.")
    yield _row(_POOL, _P.RUNNING, _D.NOT_SENT, _STOPPED, "P stops when its leg is closed.")
    yield _row(_UNSTOPPABLE, _P.RUNNING, _D.NOT_SENT, Ask.AWAIT_PREFILL, "P's engine can die if its leg is stopped.")
    yield _row(_UNSTOPPABLE, _P.FINISHED, _D.NOT_SENT, _FINISHED, "Later requests find the KV in the pool.")
    yield _row(_UNSTOPPABLE, _FAILED, _D.NOT_SENT, _STOPPED, "P has ended without a result.")


def _push_before_prefill_ends() -> Iterator[Row]:
    """P has not got its leg, or works on it."""
    yield _row(_EITHER_PUSH, _P.NOT_SENT, _D.OPEN, Ask.START_PREFILL, "D waits for P's write, without a timeout.")
    yield _row(_NOTIFIED, _P.NOT_SENT, ANSWERED, _SHORT, _PLACE)
    yield _row(_PUSH, _P.NOT_SENT, ANSWERED, _NOTHING, "D does not wait, and P has received nothing.")
    yield _row(
        _EITHER_PUSH,
        _P.NOT_SENT,
        (*_ABSENT, _D.TIMED_OUT),
        _NOTHING,
        "P has received nothing, so P holds nothing.",
    )
    why = "D possibly waits for P's write. If P is stopped, D waits without an end."
    yield _row(_EITHER_PUSH, _P.RUNNING, (_D.OPEN, _D.LOST, _D.TIMED_OUT), Ask.AWAIT_PREFILL, why)
    yield _row(_NOTIFIED, _P.RUNNING, _REPLIED, Ask.AWAIT_PREFILL, "P frees D's place only when P has finished.")
    yield _row(_PUSH, _P.RUNNING, _REPLIED, Ask.STOP_PREFILL, "D does not wait.")
    yield _row(_EITHER_PUSH, _P.RUNNING, _UNSENT, Ask.STOP_PREFILL, "D does not wait.")


def _push_after_prefill() -> Iterator[Row]:
    """P has finished."""
    yield _row(_EITHER_PUSH, _P.FINISHED, _D.OPEN, Ask.WATCH_DECODE, "D gets its KV, and then its leg is closed.")
    yield _row(_EITHER_PUSH, _P.DIED, (_D.OPEN, _D.WITHOUT_KV), Ask.CLOSE_DECODE, "P possibly died amid its write.")
    why = "If D still queues the request, P frees the KV before D gets it."
    yield _row(_EITHER_PUSH, _ENDED, _D.LATE, Ask.CLOSE_DECODE, why)
    yield _row(_EITHER_PUSH, _ENDED, (_D.HAS_KV, _D.TIMED_OUT), _FINISHED, "D has read what P has written.")
    yield _row(_NOTIFIED, _ENDED, ANSWERED, _RELEASED, "D has notified P, and P has had its leg.")
    yield _row(_PUSH, _ENDED, (*ANSWERED, *_ABSENT), Free.BY_SHORT_LEG, _PREFILLED_UNREAD)
    yield _row(_NOTIFIED, _ENDED, _ABSENT, Free.BY_REFUSED_LEG, "If P lives, P keeps its blocks until a D notifies P.")
    yield _row(_PUSH, _P.FINISHED, (_D.WITHOUT_KV, _D.CLOSED_QUEUED), Free.BY_SHORT_LEG, _PREFILLED_UNREAD)
    yield _row(_NOTIFIED, _P.FINISHED, _D.WITHOUT_KV, Free.BY_REFUSED_LEG, "D has ended without P's blocks.")
    yield _row(_NOTIFIED, _P.FINISHED, _D.CLOSED_QUEUED, _RELEASED, "D notifies P of the close.")
    yield _row(_PUSH, _ENDED, _SILENT, _FINISHED, "D has had its time to receive the KV.")
    yield _row(_NOTIFIED, _ENDED, _SILENT, _FINISHED, "D has had its time to receive the KV.", stream=True)
    why = "If a leg without a stream is closed, D notifies P as if D had refused the leg."
    yield _row(_NOTIFIED, _ENDED, _D.SILENT, _SHORT_AFTER_NOTICE, why, stream=False)
    yield _row(_NOTIFIED, _ENDED, _D.UNREPORTED, _LEASE, "D has possibly stopped, and sends no notice.", stream=False)
    yield _row(_EITHER_PUSH, _P.DIED, _D.CLOSED_QUEUED, _STOPPED, _UNHELD)
    yield _row(_EITHER_PUSH, _ENDED, _D.CLOSED_WAITING, _LOST, "P's write never comes.")


def _push_after_failed_prefill() -> Iterator[Row]:
    """P has failed. Where D notifies P, a P that has not begun may get a leg again."""
    why = "Only a D that has scheduled the request holds blocks."
    yield _row(_EITHER_PUSH, _FAILED, _D.OPEN, Ask.CLOSE_DECODE, why)
    yield _row(_NOTIFIED, _NOT_BEGUN, ANSWERED, _SHORT, _PLACE)
    yield _row(_NOTIFIED, _P.BROKEN, ANSWERED, _LEASE, "P gets no second leg after it has begun the first.")
    yield _row(_PUSH, _FAILED, ANSWERED, _LEASE, "P has possibly finished, although its answer is lost.")
    why = "D waits for P's write under this transfer ID."
    yield _row(_NOTIFIED, _NOT_BEGUN, _D.TIMED_OUT, _WHOLE, why)
    yield _row(_NOTIFIED, _NOT_BEGUN, _D.CLOSED_WAITING, _WHOLE, why, stream=True)
    why = f"{why} D's notice must reach P before this P leg ends."
    yield _row(_NOTIFIED, _NOT_BEGUN, _D.CLOSED_WAITING, _WHOLE_AFTER_NOTICE, why, stream=False)
    yield _row(_NOTIFIED, _P.BROKEN, _WAITS, _LOST, "A second P leg would not end D's wait.")
    yield _row(_PUSH, _FAILED, _WAITS, _LOST, "A second P leg would not end D's wait.")
    why = "D notifies P of the close. A D that has allocated blocks since its last metrics needs the whole KV."
    yield _row(_NOTIFIED, _P.FULL, _D.CLOSED_QUEUED, _WHOLE_FOR_QUEUED, why)
    yield _row(_NOTIFIED, _P.REJECTED, _D.CLOSED_QUEUED, _LEASE, "P would refuse the prompt again.")
    yield _row(_NOTIFIED, _P.BROKEN, _D.CLOSED_QUEUED, _STOPPED, _UNHELD)
    yield _row(_PUSH, _FAILED, _D.CLOSED_QUEUED, _STOPPED, _UNHELD)
    ended = (*_ABSENT, _D.HAS_KV, _D.WITHOUT_KV)
    yield _row(_EITHER_PUSH, _FAILED, ended, _STOPPED, "P holds nothing, and D has ended its leg.")


def _row(
    kinds: Kind | Iterable[Kind],
    prefill: Prefill | Iterable[Prefill],
    decode: Decode | Iterable[Decode],
    step: Step,
    why: str,
    stream: bool | None = None,
    notifier: Notifier | Iterable[Notifier] = tuple(Notifier),
) -> Row:
    return Row(
        frozenset((kinds,) if isinstance(kinds, Kind) else kinds),
        frozenset((prefill,) if isinstance(prefill, Prefill) else prefill),
        frozenset((decode,) if isinstance(decode, Decode) else decode),
        step,
        why,
        stream,
        frozenset((notifier,) if isinstance(notifier, Notifier) else notifier),
    )


ROWS: Final[tuple[Row, ...]] = (
    *_pull(),
    *_pool(),
    *_push_before_prefill_ends(),
    *_push_after_prefill(),
    *_push_after_failed_prefill(),
)
