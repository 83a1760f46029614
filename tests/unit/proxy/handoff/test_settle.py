"""The decision about a hand-off that ended early: every situation that can occur, and where each step leads."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from pdx_proxy.handoff.settle import ROWS, Ask, Done, Free, Substitute, settle
from pdx_proxy.handoff.situation import Decode, Kind, Notifier, Prefill, Situation
from pdx_proxy.telemetry.counters import Settlement

PUSH = (Kind.PUSH, Kind.NOTIFIED_PUSH)
ENDS = (Decode.NOT_SENT, Decode.UNREACHABLE, Decode.OPEN, Decode.REFUSED, Decode.REFUSED_BY_SERVER, Decode.FULL)
MORE_ENDS = (Decode.BUSY, Decode.FAILED, Decode.LOST, Decode.TIMED_OUT)
FAILED = (Prefill.FULL, Prefill.REJECTED, Prefill.BROKEN)
WAITS = (Decode.OPEN, Decode.LOST, Decode.TIMED_OUT, Decode.LATE)


def beginnings() -> Iterator[Situation]:
    """Yield the situations in which a settlement may begin."""
    for stream in (False, True):
        for kind in (Kind.PULL, Kind.POOL, Kind.UNSTOPPABLE_POOL):
            for prefill in (Prefill.NOT_SENT, Prefill.RUNNING):
                yield Situation(kind, stream, prefill, Decode.NOT_SENT)
        for decode, notifier in product((*ENDS, *MORE_ENDS), Notifier):
            yield Situation(Kind.PULL, stream, Prefill.FINISHED, decode, notifier)
        for kind, prefill, decode in product(PUSH, Prefill, (*ENDS, *MORE_ENDS)):
            yield Situation(kind, stream, prefill, decode)
        for kind, prefill in product(PUSH, (Prefill.FINISHED, Prefill.DIED)):
            yield Situation(kind, stream, prefill, Decode.LATE)
            yield Situation(kind, stream, prefill, Decode.HAS_KV)


def after(situation: Situation, step: Ask) -> Iterator[Situation]:
    """Yield what may be true after a step."""
    push, died = situation.kind in PUSH, replace(situation, prefill=Prefill.DIED)
    match step:
        case Ask.START_PREFILL:
            yield replace(situation, prefill=Prefill.RUNNING)
        case Ask.AWAIT_PREFILL | Ask.STOP_PREFILL:
            for prefill in FAILED if push else (Prefill.BROKEN,):
                yield replace(situation, prefill=prefill)
            notifiers = tuple(Notifier) if situation.kind is Kind.PULL else (Notifier.NOBODY,)
            for notifier in notifiers:
                yield replace(situation, prefill=Prefill.FINISHED, notifier=notifier)
            if push:
                yield died
        case Ask.WATCH_DECODE:
            for decode in (Decode.HAS_KV, Decode.WITHOUT_KV, Decode.SILENT, Decode.UNREPORTED):
                yield replace(situation, decode=decode)
                yield replace(died, decode=decode)
        case Ask.CLOSE_DECODE:
            for decode in (Decode.CLOSED_QUEUED, Decode.CLOSED_WAITING):
                yield replace(situation, decode=decode)
                if situation.prefill is Prefill.FINISHED:
                    yield replace(died, decode=decode)


def reachable() -> set[Situation]:
    """Return every situation that can occur."""
    seen: set[Situation] = set()
    new = set(beginnings())
    while new:
        seen |= new
        asked = [(situation, step) for situation in new if isinstance(step := settle(situation), Ask)]
        new = {following for situation, step in asked for following in after(situation, step)} - seen
    return seen


REACHABLE = sorted(reachable(), key=repr)


def test_every_situation_fits_one_row_and_every_row_occurs() -> None:
    fitting = {situation: [row for row in ROWS if row.fits(situation)] for situation in REACHABLE}
    assert [situation for situation, rows in fitting.items() if len(rows) != 1] == []
    assert {row for rows in fitting.values() for row in rows} == set(ROWS)


def test_a_situation_that_cannot_occur_is_no_situation() -> None:
    with pytest.raises(LookupError, match="no row for"):
        settle(Situation(Kind.POOL, False, Prefill.DIED, Decode.LATE))


def test_from_every_situation_the_loop_ends() -> None:
    """No step leads back to a situation that led to it."""

    def steps(situation: Situation, before: tuple[Situation, ...] = ()) -> None:
        assert situation not in before, before
        step = settle(situation)
        if isinstance(step, Ask):
            for following in after(situation, step):
                steps(following, (*before, situation))

    for situation in REACHABLE:
        steps(situation)


def test_a_prefill_is_never_stopped_while_a_decode_waits_for_its_write() -> None:
    for situation in REACHABLE:
        if situation.kind in PUSH and settle(situation) is Ask.STOP_PREFILL:
            assert situation.decode not in WAITS, situation
            assert situation.kind is Kind.PUSH or situation.decode in (Decode.NOT_SENT, Decode.UNREACHABLE), situation


def test_a_waiting_decode_gets_no_short_prompt() -> None:
    """It would cache that KV under the client's prompt."""
    for situation in REACHABLE:
        step = settle(situation)
        if isinstance(step, Substitute) and step.short:
            assert situation.decode not in (*WAITS, Decode.CLOSED_WAITING, Decode.CLOSED_QUEUED), situation


def test_a_prefill_that_has_begun_gets_no_second_leg() -> None:
    for situation in REACHABLE:
        if situation.prefill is Prefill.BROKEN:
            assert not isinstance(settle(situation), Substitute), situation


def test_kv_that_nobody_reads_is_freed_or_left_to_its_lease() -> None:
    """P has finished and D has not loaded the KV: the end is neither `prefill_stopped` nor nothing."""
    for situation in REACHABLE:
        unread = situation.decode in (Decode.NOT_SENT, Decode.UNREACHABLE, Decode.WITHOUT_KV)
        if situation.prefill is Prefill.FINISHED and unread and situation.kind is not Kind.UNSTOPPABLE_POOL:
            assert isinstance(settle(situation), Free), situation


def test_blocks_are_lost_only_where_a_decode_waits_for_a_prefill_that_has_failed() -> None:
    for situation in REACHABLE:
        step = settle(situation)
        otherwise = step.otherwise if isinstance(step, Substitute) else None
        if Settlement.DECODE_LOST in (otherwise, step.result if isinstance(step, Done) else None):
            assert situation.decode in (Decode.TIMED_OUT, Decode.CLOSED_WAITING), situation
