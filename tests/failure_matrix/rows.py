"""The rows of docs/failures.md in which an engine fails: tests/component/handoff/test_failures.py runs each of them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pdx_api.names import Role
from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome, Settlement
from tests.failure_matrix.prefill import prefill_rows
from tests.failure_matrix.row import (
    ALL,
    IDLE,
    LONG,
    POLICIES,
    POOL,
    PULL,
    PULL_AND_POOL,
    PUSH,
    RETRY,
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
    ANY_SETTLED,
    DECODE_WAYS,
    FREED,
    NONE,
    REFUSED,
    REFUSES,
    SPLIT,
    K,
    Way,
    strike,
)


def _decode_row(way: Way, suffix: str, text: str, client: Client, *, always: bool = False, **more: Any) -> Row:
    return Row(
        f"decode-{way.id}{suffix}",
        Phase.DECODE,
        f"D {way.text}{text}",
        client,
        **{
            "strike": strike(Role.DECODE, way, always=always),
            "lease": True,
            "stranded": True,
            "deadlines": SHORT if way.hangs else LONG,
            **more,
        },
    )


def _decode_fails() -> Iterator[Row]:
    """D fails before its first event: another pair is selected."""
    right, other = Client.RIGHT, "; another D does not"
    for way in DECODE_WAYS:
        shared: dict[str, Any] = {"outcomes": SPLIT, "retries": {way.reason: 1}}
        if way.hangs:  # an answer without a stream may take as long as the whole request: see `_expires`
            shared["streams"] = STREAM
        policies = POLICIES if way.id == "dies" else RETRY  # D's failures are retried whatever P's are
        yield _decode_row(
            way, "", other, right, settled=FREED, legs=(2, 2, 0), orders=PULL, policies=policies, **shared
        )
        yield _decode_row(way, "-pool", other, right, legs=(2, 2, 0), orders=POOL, **shared)
        shared["settled"] = (*ANY_SETTLED, Settlement.DECODE_LOST)
        legs: tuple[int | None, int | None, int] = (None, 2, 0)
        if way.hangs:  # the request would wait longer than a push survives
            shared["outcomes"], legs = ALONE, (None, None, 1)
        yield _decode_row(way, "-push", other, right, legs=legs, orders=PUSH, **shared)
    load = Way("load-fails", "could not load the KV", K.ERROR_EVENT, Reason.STATUS)
    for suffix, text, reason, streams in (
        ("", ": 500", Reason.STATUS, WHOLE),
        ("-event", ": an error event in its 200", Reason.ERROR_EVENT, STREAM),
    ):
        shared = {"outcomes": SPLIT, "retries": {reason: 1}, "settled": ANY_SETTLED, "streams": streams}
        yield _decode_row(load, suffix, f"{text}{other}", right, legs=(2, 2, 0), orders=ALL, **shared)
    yield _decode_row(REFUSED, "", "", right, outcomes=ALONE, legs=(1, 1, 1), orders=PULL)
    yield _decode_row(REFUSED, "-push", "", right, outcomes=ALONE, legs=(None, 1, 1), settled=ANY_SETTLED, orders=PUSH)
    yield _decode_row(
        REFUSED, "-pool", "", Client.REFUSED, outcomes={Outcome.REFUSED_BY_ENGINE: 1}, legs=(1, 1, 0), orders=POOL
    )
    twice, connect = {Outcome.SPLIT: 2}, {Reason.CONNECT: 1}
    released = {Settlement.RELEASED: 1}
    refuses: dict[str, Any] = {"outcomes": twice, "retries": connect, "requests": 2}
    yield _decode_row(REFUSES, "", other, right, settled=released, legs=(3, 2, 0), orders=PULL, **refuses)
    yield _decode_row(REFUSES, "-pool", other, right, legs=(3, 2, 0), orders=POOL, **refuses)
    yield _decode_row(REFUSES, "-push", other, right, legs=(2, 2, 0), orders=PUSH, **refuses)
    gone: dict[str, Any] = {"outcomes": NONE, "retries": {Reason.CONNECT: 3}, "always": True}
    no = Client.UNAVAILABLE
    yield _decode_row(
        REFUSES,
        "-always",
        ", and so does every D",
        no,
        settled={Settlement.LEASE: 2},
        legs=(2, 0, 0),
        orders=PULL,
        **gone,
    )
    every = ", and so does every D"
    yield _decode_row(REFUSES, "-always-pool", every, no, legs=(2, 0, 0), orders=POOL, **gone)
    yield _decode_row(REFUSES, "-always-push", ", and so does every D", no, legs=(0, 0, 0), orders=PUSH, **gone)
    five = Row(
        "decode-500-always",
        Phase.DECODE,
        "D answers 500, and so does every D, also to whole requests",
        Client.ENGINES,
        outcomes=NONE,
        retries={Reason.STATUS: 3},
        settled=ANY_SETTLED,
        legs=(None, 2, 1),
        strike=Strike(Role.DECODE, K.STATUS, always=True, fields={"status": 500, "leg": None}),
        lease=True,
        stranded=True,
    )
    yield five
    yield replace(five, id="decode-500-always-pool", settled={}, legs=(2, 3, 0), orders=POOL)
    json = Way("garbage-json", "answers bytes that are not JSON", K.GARBAGE_JSON, Reason.LOST)
    yield _decode_row(json, "", "", Client.AS_IT_CAME, outcomes=SPLIT, legs=(1, 1, 0), orders=ALL)


def _used_connections() -> Iterator[Row]:
    """An engine closes an idle connection at the moment when it is used again."""
    text = "closes an idle connection as it is used again"
    shared: dict[str, Any] = {"outcomes": SPLIT, "client": Client.RIGHT}
    prefill = Strike(Role.PREFILL, K.DIE_BEFORE_HEAD, used=True)
    yield Row("prefill-stale", Phase.PREFILL, f"P {text}", legs=(2, 1, 0), strike=prefill, orders=ALL, **shared)
    shared |= {"phase": Phase.DECODE, "strike": Strike(Role.DECODE, K.DIE_BEFORE_HEAD, used=True)}
    yield Row("decode-stale-pool", fails=f"D {text}", legs=(1, 2, 0), orders=POOL, **shared)
    shared |= {"retries": {Reason.LOST: 1}, "lease": True, "stranded": True}
    again = f"D {text}. It may have read the KV: P runs again"
    yield Row("decode-stale", fails=again, legs=(2, 2, 0), settled=FREED, orders=PULL, **shared)
    settled = (*ANY_SETTLED, Settlement.DECODE_LOST)
    yield Row("decode-stale-push", fails=again, legs=(None, 2, 0), settled=settled, orders=PUSH, **shared)


def _stream_fails() -> Iterator[Row]:
    """D fails after its first event: nothing is sent twice."""
    for id_, text, kind, client, outcome, deadlines in (
        ("dies", "dies between two events", K.DIE_AFTER_EVENTS, Client.EVENT, Outcome.BROKEN, LONG),
        ("dies-in-event", "dies inside an event", K.DIE_IN_EVENT, Client.CUT, Outcome.BROKEN, LONG),
        ("hangs", "sends nothing more", K.HANG_AFTER_HEAD, Client.EVENT, Outcome.IDLE, IDLE),
        ("error", "sends an error event", K.ERROR_EVENT, Client.EVENT, Outcome.SPLIT, LONG),
        ("garbage", "sends an event that is no JSON", K.GARBAGE_JSON, Client.AS_IT_CAME, Outcome.SPLIT, LONG),
        (
            "expires",
            "is too slow for the whole request's deadline",
            K.HANG_AFTER_HEAD,
            Client.EVENT,
            Outcome.EXPIRED,
            TOTAL,
        ),
    ):
        yield Row(
            f"stream-{id_}",
            Phase.ANSWER,
            f"D {text}",
            client,
            outcomes={outcome: 1},
            legs=(1, 1, 0),
            streams=STREAM,
            strike=Strike(Role.DECODE, kind, fields={"events": 3}),
            orders=ALL,
            deadlines=deadlines,
        )


def _expires() -> Iterator[Row]:
    """The whole request's deadline passes before the first event."""
    late = {Outcome.EXPIRED: 1}
    hang: dict[str, Any] = {
        "client": Client.LATE,
        "outcomes": late,
        "deadlines": TOTAL,
        "lease": True,
        "stranded": True,
    }
    prefill, decode = (Strike(role, K.HANG_BEFORE_HEAD) for role in (Role.PREFILL, Role.DECODE))
    text = "the whole request's deadline passes"
    stopped = {Settlement.PREFILL_STOPPED: 1}
    yield Row(
        "prefill-expires",
        Phase.PREFILL,
        text,
        legs=(1, 0, 0),
        orders=PULL_AND_POOL,
        strike=prefill,
        settled=stopped,
        **hang,
    )
    finished = {Settlement.FINISHED: 1}
    yield Row(
        "prefill-expires-push",
        Phase.PREFILL,
        text,
        legs=(2, 1, 0),
        orders=PUSH,
        strike=prefill,
        settled=finished,
        **hang,
    )
    expires: dict[str, Any] = {"legs": (1, 1, 0), "strike": decode, **hang}
    yield Row("decode-expires", Phase.DECODE, text, settled=ANY_SETTLED, **expires)
    yield Row("decode-expires-pool", Phase.DECODE, text, orders=POOL, **expires)
    silent: dict[str, Any] = {**expires, "strike": Strike(Role.DECODE, K.HANG_AFTER_HEAD), "streams": WHOLE}
    text = "D hangs after its head until the whole request's deadline passes"
    yield Row("decode-expires-after-head", Phase.DECODE, text, settled=(*ANY_SETTLED, None), **silent)
    yield Row("decode-expires-after-head-pool", Phase.DECODE, text, orders=POOL, **silent)


def _nobody_ready() -> Iterator[Row]:
    """One role has no engine."""
    p, d = "no P is ready", "no D is ready"
    yield Row(
        "no-prefill",
        Phase.QUEUE,
        p,
        Client.RIGHT,
        outcomes=ALONE,
        legs=(0, 0, 1),
        ready=(0, 1),
        policies=POLICIES,
        orders=ALL,
    )
    yield Row("no-decode", Phase.QUEUE, d, Client.UNAVAILABLE, outcomes=NONE, ready=(1, 0), orders=ALL)


def rows() -> tuple[Row, ...]:
    """The rows that test_failures.py runs."""
    return (
        *_nobody_ready(),
        *prefill_rows(),
        *_decode_fails(),
        *_used_connections(),
        *_stream_fails(),
        *_expires(),
    )
