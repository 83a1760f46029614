"""The rows of docs/failures.md for Mooncake. tests/component/handoff/test_failures.py runs each of them.

If P goes first, it fails as with every connector. A D that has its leg waits: P gets its leg again only if it has not
begun. Otherwise D's blocks are lost until its own timeout (docs/settling.md).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from pdx_api.names import PrefillFailure, Role
from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome, Settlement
from pdx_sim import FaultKind as K
from tests.failure_matrix.row import (
    LONG,
    MOONCAKE_ALL,
    MOONCAKE_D_WAITS,
    MOONCAKE_P_FIRST,
    SHORT,
    STREAM,
    TOTAL,
    WHOLE,
    Client,
    Phase,
    Row,
    Strike,
)
from tests.failure_matrix.ways import (
    ALONE,
    DECODE_WAYS,
    HANGS_LATE,
    IDLE_WAYS,
    NO_PARAMS,
    NONE,
    REFUSED,
    REFUSES,
    SPLIT,
    WORKED_WAYS,
    Way,
)

_FULL: Final = next(way for way in IDLE_WAYS if way.id == "503")
_TOTAL: Final = replace(TOTAL, total=0.6, prefill=0.8)
"""D has given up before the answers are settled."""
_LOST: Final = {Settlement.DECODE_LOST: 1}
_MAY_HAVE_KV: Final = (Settlement.PREFILL_STOPPED, Settlement.DECODE_LOST)
"""P has finished, and its write reaches D without the answer: a D that runs when it is closed has lost nothing."""
_RIGHT: Final = Client.RIGHT
_FREED: Final = (Settlement.RELEASED, Settlement.FINISHED, Settlement.LEASE)
_IN_VAIN: Final = (Settlement.DECODE_LOST, Settlement.FINISHED, Settlement.RELEASED, Settlement.LEASE)
"""A D that hangs may wait or not."""


def _row(role: Role, way: Way, suffix: str, text: str, client: Client, **more: Any) -> Row:
    """A row of one way to fail. P's finished blocks may wait for their lease; if `stranded`, D's for a timeout."""
    prefill = role is Role.PREFILL
    strike = Strike(role, way.kind, more.pop("always", False), more.pop("used", False), way.fields)
    return Row(
        f"mooncake-{role}-{way.id}{suffix}",
        Phase.PREFILL if prefill else Phase.DECODE,
        f"{'P' if prefill else 'D'} {way.text}{text}",
        client,
        **{
            "strike": strike,
            "lease": True,
            "deadlines": SHORT if way.hangs else LONG,
            "alternate": more.get("streams") is None,
            **more,
        },
    )


def _prefill(way: Way, suffix: str, text: str, client: Client = _RIGHT, **more: Any) -> Row:
    return _row(Role.PREFILL, way, suffix, text, client, **more)


def _decode(way: Way, suffix: str, text: str, client: Client = _RIGHT, **more: Any) -> Row:
    return _row(Role.DECODE, way, suffix, text, client, **more)


def _prefill_first() -> Iterator[Row]:
    """P fails before D has its leg."""
    for number, way in enumerate((*IDLE_WAYS, *WORKED_WAYS, HANGS_LATE)):
        yield _prefill(
            way,
            "-first",
            "; another P does not",
            outcomes=SPLIT,
            retries={way.reason: 1},
            legs=(2, 1, 0),
            orders=MOONCAKE_P_FIRST,
            streams=STREAM if number % 2 else WHOLE,
        )
    yield _prefill(REFUSED, "-first", "", outcomes=ALONE, legs=(1, 0, 1), orders=MOONCAKE_P_FIRST, streams=STREAM)


def _prefill_of_a_waiting_decode() -> Iterator[Row]:
    """P fails and D waits for it."""
    for way in (*IDLE_WAYS, *WORKED_WAYS):
        if way is not _FULL:
            yield _prefill(
                way,
                "-waits",
                "; another pair does not, and the first D has its KV"
                if way.works
                else "; another pair does not, and the first D waits for nothing",
                outcomes=SPLIT,
                retries={way.reason: 1},
                settled=_MAY_HAVE_KV if way.works else _LOST,
                legs=(2, 2, 0),
                orders=MOONCAKE_D_WAITS,
                stranded=True,
            )
    yield _prefill(
        _FULL,
        "-waits",
        "; on a second leg under the ID, it does not",
        outcomes=SPLIT,
        legs=(2, 1, 0),
        orders=MOONCAKE_D_WAITS,
    )
    yield _prefill(HANGS_LATE, "-waits", "; D has its KV", outcomes=SPLIT, legs=(1, 1, 0), orders=MOONCAKE_D_WAITS)
    finished = {Settlement.FINISHED: 1}
    text = "; a short leg under the ID frees D"
    yield _prefill(REFUSED, "-waits", text, outcomes=ALONE, settled=finished, legs=(2, 1, 1), orders=MOONCAKE_D_WAITS)
    dies = next(way for way in IDLE_WAYS if way.id == "dies")
    for way, count in ((dies, 2), (_FULL, 6)):
        yield _prefill(
            way,
            "-waits-always",
            ", and so does every P",
            always=True,
            outcomes=ALONE,
            retries={way.reason: 2},
            settled={Settlement.DECODE_LOST: 2},
            legs=(count, 2, 1),
            orders=MOONCAKE_D_WAITS,
            stranded=True,
        )
    for way in (dies, _FULL):
        for policy, failure_answer, outcome in (
            (PrefillFailure.LOCAL, _RIGHT, ALONE),
            (PrefillFailure.FAIL, Client.ENGINES if way is _FULL else Client.UNAVAILABLE, NONE),
        ):
            yield _prefill(
                way,
                f"-waits-{policy.lower()}",
                "; a short leg under the ID frees D" if way is _FULL else "; D waits for nothing",
                failure_answer,
                outcomes=outcome,
                retries={way.reason: 1},
                settled=finished if way is _FULL else _LOST,
                legs=(2 if way is _FULL else 1, 1, int(policy is PrefillFailure.LOCAL)),
                orders=MOONCAKE_D_WAITS,
                policies=(policy,),
                stranded=way is dies,
            )


def _prefill_in_any_order() -> Iterator[Row]:
    """Rows that do not depend on the order."""
    connect = {Reason.CONNECT: 1}
    text = ", as every P of Mooncake does"
    yield _prefill(NO_PARAMS, "", text, outcomes=SPLIT, legs=(1, 1, 0), orders=MOONCAKE_ALL)
    yield _prefill(
        REFUSES,
        "",
        "; another P does not",
        outcomes={Outcome.SPLIT: 3},
        retries=connect,
        legs=(3, 3, 0),
        requests=3,
        orders=MOONCAKE_ALL,
    )
    always: dict[str, Any] = {"always": True, "retries": {Reason.CONNECT: 2}, "legs": (0, 0, 1), "orders": MOONCAKE_ALL}
    yield _prefill(REFUSES, "-always", ", and so does every P", outcomes=ALONE, **always)


def _decode_fails() -> Iterator[Row]:
    """D fails before its first event: another pair is selected. A D that hangs may have notified P."""
    other = "; another D does not"
    for number, way in enumerate(DECODE_WAYS):
        # Of a 503, D tells P, and whatever was begun is met: nothing may wait for a time-out.
        shared: dict[str, Any] = {"outcomes": SPLIT, "retries": {way.reason: 1}, "stranded": way is not _FULL}
        settled = _IN_VAIN if way.hangs else (Settlement.RELEASED,)
        streams = STREAM if number % 2 or way.hangs else WHOLE
        legs: tuple[int | None, int | None, int] = (None, 2, 0)
        form: dict[str, Any] = {}
        if way.hangs:  # the request would wait longer than a push survives
            shared["outcomes"], legs, form = ALONE, (None, None, 1), {"streams": STREAM}
        yield _decode(
            way,
            "-first",
            other,
            settled=settled,
            legs=legs if way.hangs else (2, 2, 0),
            orders=MOONCAKE_P_FIRST,
            streams=streams,
            **shared,
        )
        failure_answer = _IN_VAIN if way.hangs else (*_FREED, None)
        yield _decode(
            way, "-waits", other, settled=failure_answer, legs=legs, orders=MOONCAKE_D_WAITS, **shared, **form
        )
    load = Way("load-fails", "could not load the KV", K.ERROR_EVENT, Reason.STATUS)
    for suffix, text, reason, streams in (
        ("", ": 500", Reason.STATUS, WHOLE),
        ("-event", ": an error event in its 200", Reason.ERROR_EVENT, STREAM),
    ):
        shared = {"outcomes": SPLIT, "retries": {reason: 1}, "settled": _FREED, "streams": streams}
        shared["stranded"] = True
        yield _decode(load, suffix, f"{text}{other}", legs=(2, 2, 0), orders=MOONCAKE_ALL, **shared)
    json = Way("garbage-json", "answers bytes that are not JSON", K.GARBAGE_JSON, Reason.LOST)
    yield _decode(json, "", "", Client.AS_IT_CAME, outcomes=SPLIT, legs=(1, 1, 0), orders=MOONCAKE_ALL)
    released = {Settlement.RELEASED: 1}
    refused: dict[str, Any] = {"outcomes": ALONE, "streams": STREAM, "settled": released}
    yield _decode(REFUSED, "-first", "", legs=(1, 1, 1), orders=MOONCAKE_P_FIRST, **refused)
    yield _decode(REFUSED, "-waits", "", outcomes=ALONE, settled=_FREED, legs=(None, 1, 1), orders=MOONCAKE_D_WAITS)
    refuses: dict[str, Any] = {"outcomes": {Outcome.SPLIT: 2}, "retries": {Reason.CONNECT: 1}, "requests": 2}
    yield _decode(
        REFUSES, "-first", other, settled=released, legs=(3, 2, 0), orders=MOONCAKE_P_FIRST, streams=WHOLE, **refuses
    )
    yield _decode(REFUSES, "-waits", other, legs=(2, 2, 0), orders=MOONCAKE_D_WAITS, **refuses)
    every, no = ", and so does every D", Client.UNAVAILABLE
    gone: dict[str, Any] = {"outcomes": NONE, "retries": {Reason.CONNECT: 3}, "always": True}
    lease = {Settlement.LEASE: 2}
    yield _decode(
        REFUSES,
        "-first-always",
        every,
        no,
        settled=lease,
        legs=(2, 0, 0),
        orders=MOONCAKE_P_FIRST,
        streams=STREAM,
        **gone,
    )
    yield _decode(REFUSES, "-waits-always", every, no, legs=(0, 0, 0), orders=MOONCAKE_D_WAITS, **gone)


def _used_connections() -> Iterator[Row]:
    """An engine closes an idle connection at the moment when it is used again."""
    stale = Way("stale", "closes an idle connection as it is used again", K.DIE_BEFORE_HEAD, Reason.LOST)
    yield _prefill(stale, "", "", used=True, outcomes=SPLIT, legs=(2, 1, 0), orders=MOONCAKE_ALL)
    again = ". It may have read the KV: P runs again"
    more: dict[str, Any] = {"used": True, "outcomes": SPLIT, "retries": {Reason.LOST: 1}, "stranded": True}
    yield _decode(stale, "", again, legs=(None, 2, 0), settled=(*_IN_VAIN, None), orders=MOONCAKE_ALL, **more)


def _stream_fails() -> Iterator[Row]:
    """D fails after its first event: nothing is sent twice."""
    for id_, text, kind, client in (
        ("dies", "dies between two events", K.DIE_AFTER_EVENTS, Client.EVENT),
        ("dies-in-event", "dies inside an event", K.DIE_IN_EVENT, Client.CUT),
    ):
        yield Row(
            f"mooncake-stream-{id_}",
            Phase.ANSWER,
            f"D {text}",
            client,
            outcomes={Outcome.BROKEN: 1},
            legs=(1, 1, 0),
            streams=STREAM,
            strike=Strike(Role.DECODE, kind, fields={"events": 3}),
            orders=MOONCAKE_ALL,
        )


def _expires() -> Iterator[Row]:
    """The whole request's deadline passes before the first event."""
    hangs = next(way for way in IDLE_WAYS if way.hangs)
    late: dict[str, Any] = {"outcomes": {Outcome.EXPIRED: 1}, "deadlines": _TOTAL, "stranded": True}
    text = " until the whole request's deadline passes"
    stopped = {Settlement.PREFILL_STOPPED: 1}
    yield _prefill(
        hangs,
        "-expires-first",
        text,
        Client.LATE,
        legs=(1, 0, 0),
        settled=stopped,
        orders=MOONCAKE_P_FIRST,
        streams=WHOLE,
        **late,
    )
    yield _prefill(
        hangs, "-expires-waits", text, Client.LATE, legs=(1, 1, 0), settled=_LOST, orders=MOONCAKE_D_WAITS, **late
    )
    yield _decode(hangs, "-expires", text, Client.LATE, legs=(1, 1, 0), settled=_FREED, orders=MOONCAKE_ALL, **late)
    silent = Way("hangs-after-head", "hangs after its head", K.HANG_AFTER_HEAD, Reason.DEADLINE)
    yield _decode(
        silent,
        "-expires",
        text,
        Client.LATE,
        legs=(1, 1, 0),
        settled=(*_FREED, None),
        orders=MOONCAKE_P_FIRST,
        streams=WHOLE,
        **late,
    )


def mooncake_rows() -> tuple[Row, ...]:
    """The rows that test_failures.py runs."""
    return (
        *_prefill_in_any_order(),
        *_prefill_first(),
        *_prefill_of_a_waiting_decode(),
        *_decode_fails(),
        *_used_connections(),
        *_stream_fails(),
        *_expires(),
    )
