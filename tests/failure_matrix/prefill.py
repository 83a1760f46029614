"""The rows of docs/failures.md in which P fails while it prefills."""

from collections.abc import Iterator
from typing import Any

from pdx_api.names import PrefillFailure, Role
from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome, Settlement
from tests.failure_matrix.row import ALL, LONG, POLICIES, POOL, PULL, PULL_AND_POOL, PUSH, SHORT, Client, Phase, Row
from tests.failure_matrix.ways import (
    ALONE,
    HANGS_LATE,
    IDLE_WAYS,
    NO_PARAMS,
    NONE,
    REFUSED,
    REFUSES,
    SPLIT,
    WORKED_WAYS,
    K,
    Way,
    strike,
)


def _prefill_row(way: Way, suffix: str, text: str, client: Client, *, always: bool = False, **more: Any) -> Row:
    return Row(
        f"prefill-{way.id}{suffix}",
        Phase.PREFILL,
        f"P {way.text}{text}",
        client,
        strike=strike(Role.PREFILL, way, always=always),
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


def prefill_rows() -> Iterator[Row]:
    """The rows in which P fails."""
    yield from _prefill_retried()
    yield from _prefill_not_retried()
    yield from _prefill_refused()
