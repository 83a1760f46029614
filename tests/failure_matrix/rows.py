"""The rows of docs/failures.md in which an engine fails: tests/component/handoff/test_failures.py runs each of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pdx_api.names import PrefillFailure, Role
from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome, Settlement
from pdx_sim import FaultKind
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


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which an engine fails."""

    id: str
    text: str
    kind: FaultKind
    reason: Reason
    fields: Mapping[str, Any] = field(default_factory=dict)
    works: bool = False
    """Whether P has finished. Its blocks then wait for their lease."""
    hangs: bool = False


K = FaultKind
REFUSES: Final = Way("refuses", "refuses the connection", K.REFUSE, Reason.CONNECT)
REFUSED: Final = Way("4xx", "answers 4xx", K.STATUS, Reason.STATUS, {"status": 400})
IDLE_WAYS: Final = (
    Way("500", "answers 500", K.STATUS, Reason.STATUS, {"status": 500}),
    Way("503", "answers 503", K.STATUS, Reason.STATUS, {"status": 503}),
    Way("dies", "dies before it answers", K.DIE_BEFORE_HEAD, Reason.LOST),
    Way("hangs", "hangs", K.HANG_BEFORE_HEAD, Reason.DEADLINE, hangs=True),
    Way("garbage", "answers bytes that are not HTTP", K.GARBAGE_BYTES, Reason.LOST),
    Way("abort", 'answers "abort" by itself', K.ABORT, Reason.ABORT),
)
"""Ways in which P fails without having worked."""
WORKED_WAYS: Final = (
    Way("loses-answer", "dies when it has finished", K.LOSE_ANSWER, Reason.LOST, works=True),
    Way("dies-amid-answer", "dies amid its answer", K.DIE_AFTER_HEAD, Reason.LOST, works=True),
    Way("garbage-json", "answers bytes that are not JSON", K.GARBAGE_JSON, Reason.LOST, works=True),
    Way("error", "fails inside (500)", K.ERROR_EVENT, Reason.STATUS, works=True),
)
NO_PARAMS: Final = Way("no-params", "answers without parameters", K.NO_PARAMS, Reason.STATUS, works=True)
HANGS_LATE: Final = Way(
    "hangs-amid-answer", "hangs amid its answer", K.HANG_AFTER_HEAD, Reason.DEADLINE, works=True, hangs=True
)
FREED: Final = (Settlement.RELEASED, Settlement.LEASE)
ANY_SETTLED: Final = (*FREED, Settlement.FINISHED, Settlement.PREFILL_STOPPED, None)
SPLIT: Final = {Outcome.SPLIT: 1}
ALONE: Final = {Outcome.WHOLE: 1}
NONE: Final = {Outcome.UNAVAILABLE: 1}


def _strike(role: Role, way: Way, *, always: bool = False, used: bool = False) -> Strike:
    return Strike(role, way.kind, always, used, way.fields)


def _prefill_row(way: Way, suffix: str, text: str, client: Client, *, always: bool = False, **more: Any) -> Row:
    return Row(
        f"prefill-{way.id}{suffix}",
        Phase.PREFILL,
        f"P {way.text}{text}",
        client,
        strike=_strike(Role.PREFILL, way, always=always),
        lease=way.works,
        deadlines=SHORT if way.hangs else LONG,
        **more,
    )


def _prefill_retried() -> Iterator[Row]:
    """P fails and the request is retried."""
    right = Client.RIGHT
    for way in (*IDLE_WAYS, *WORKED_WAYS, HANGS_LATE):
        once = {way.reason: 1}
        yield _prefill_row(
            way, "", "; another P does not", right, outcomes=SPLIT, retries=once, legs=(2, 1, 0), orders=PULL_AND_POOL
        )
        if way is not HANGS_LATE:
            same = "; on a second leg the same P does not"
            legs = (None if way.works else 2, 1, 0)
            yield _prefill_row(way, "-again", same, right, outcomes=SPLIT, legs=legs, orders=PUSH)
        for suffix, orders, found in (("", PULL, False), ("-pool", POOL, way.works)):
            # D finds the KV that P saved before it failed, although D serves alone
            legs = (2, 1, 0) if found else (2, 0, 1)
            yield _prefill_row(
                way,
                f"-always{suffix}",
                ", and so does every P",
                right,
                always=True,
                outcomes=ALONE,
                retries={way.reason: 2},
                legs=legs,
                orders=orders,
            )
    yield _prefill_row(HANGS_LATE, "-again", "; D has its KV", right, outcomes=SPLIT, legs=(1, 1, 0), orders=PUSH)
    yield _prefill_row(NO_PARAMS, "", "", right, outcomes=ALONE, legs=(1, 0, 1), orders=PULL, policies=POLICIES)
    yield _prefill_row(
        NO_PARAMS, "-again", "; on a second leg, with", right, outcomes=SPLIT, legs=(None, 1, 0), orders=PUSH
    )
    text = ", as every P of a pool does"
    yield _prefill_row(NO_PARAMS, "-pool", text, right, outcomes=SPLIT, legs=(1, 1, 0), orders=POOL)
    for way in IDLE_WAYS:
        yield _prefill_row(
            way,
            "-for-good",
            ", and so does every P, for good",
            right,
            always=True,
            outcomes=ALONE,
            retries={way.reason: 2},
            settled={Settlement.DECODE_LOST: 2},
            legs=(4, 2, 1),
            orders=PUSH,
            stranded=True,
        )
    split_thrice = {Outcome.SPLIT: 3}
    connect = {Reason.CONNECT: 1}
    yield _prefill_row(
        REFUSES,
        "",
        "; another P does not",
        right,
        outcomes=split_thrice,
        retries=connect,
        legs=(3, 3, 0),
        requests=3,
        orders=ALL,
    )
    yield _prefill_row(
        REFUSES,
        "-always",
        ", and so does every P",
        right,
        always=True,
        outcomes=ALONE,
        retries={Reason.CONNECT: 2},
        legs=(0, 0, 1),
        orders=ALL,
    )


def _prefill_not_retried() -> Iterator[Row]:
    """P fails and the policy allows no other P: D serves alone, or the client gets the error."""
    for way in (REFUSES, *IDLE_WAYS):
        failure_answer = Client.ENGINES if way.kind is K.STATUS else Client.UNAVAILABLE
        refused = way is REFUSES
        for policy, client, outcome in (
            (PrefillFailure.LOCAL, Client.RIGHT, ALONE),
            (PrefillFailure.FAIL, failure_answer, NONE),
        ):
            alone = int(policy is PrefillFailure.LOCAL)
            shared: dict[str, Any] = {
                "outcomes": outcome,
                "retries": {way.reason: 1},
                "policies": (policy,),
                "always": refused,
            }
            suffix = f"-{policy.lower()}"
            legs = (0 if refused else 1, 0, alone)
            orders = ALL if refused else PULL_AND_POOL
            yield _prefill_row(way, suffix, "", client, legs=legs, orders=orders, **shared)
            if not refused:
                settled, push = {Settlement.FINISHED: 1}, (2, 1, alone)
                text = "; a second leg, only for D's blocks, succeeds"
                yield _prefill_row(
                    way, f"{suffix}-push", text, client, legs=push, settled=settled, orders=PUSH, **shared
                )


def _prefill_refused() -> Iterator[Row]:
    """A 4xx is not a failure of P: D gets the whole request."""
    right, lost = Client.RIGHT, {Settlement.DECODE_LOST: 1}
    yield _prefill_row(REFUSED, "", "", right, outcomes=ALONE, legs=(1, 0, 1), orders=PULL_AND_POOL, policies=POLICIES)
    yield _prefill_row(
        REFUSED,
        "-push",
        ", D does not",
        right,
        outcomes=ALONE,
        legs=(1, 1, 1),
        settled=lost,
        orders=PUSH,
        policies=POLICIES,
        stranded=True,
    )


DECODE_WAYS: Final = (
    *IDLE_WAYS,
    Way("loses-answer", "dies when it has worked, before its first event", K.LOSE_ANSWER, Reason.LOST, works=True),
    Way("dies-after-head", "dies after its head, before its first event", K.DIE_AFTER_HEAD, Reason.LOST, works=True),
    Way("hangs-after-head", "hangs after its head", K.HANG_AFTER_HEAD, Reason.DEADLINE, works=True, hangs=True),
)


def _decode_row(way: Way, suffix: str, text: str, client: Client, *, always: bool = False, **more: Any) -> Row:
    return Row(
        f"decode-{way.id}{suffix}",
        Phase.DECODE,
        f"D {way.text}{text}",
        client,
        **{
            "strike": _strike(Role.DECODE, way, always=always),
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
    for role, legs in ((Role.PREFILL, (2, 1, 0)), (Role.DECODE, (1, 2, 0))):
        side = "P" if role is Role.PREFILL else "D"
        phase = Phase.PREFILL if role is Role.PREFILL else Phase.DECODE
        strike = Strike(role, K.DIE_BEFORE_HEAD, used=True)
        text = f"{side} closes an idle connection as it is used again"
        yield Row(f"{role}-stale", phase, text, Client.RIGHT, outcomes=SPLIT, legs=legs, strike=strike, orders=ALL)


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
        *_prefill_retried(),
        *_prefill_not_retried(),
        *_prefill_refused(),
        *_decode_fails(),
        *_used_connections(),
        *_stream_fails(),
        *_expires(),
    )
