"""The rows about limits and the queue."""

from collections.abc import Iterator
from typing import Final

from pdx_proxy.telemetry.counters import Outcome, Settlement, ShedReason
from tests.failure_matrix.row import PULL, PUSH, Client, Phase, Row

_LEFT: Final = {Outcome.CLIENT_LEFT: 1}
_GONE: Final = "nothing: it has left"
_OVERLOAD: Final = "component/admission/test_overload.py::test_"


def limits() -> Iterator[Row]:
    """More requests than the gateway accepts."""
    shed, nothing = {Outcome.SHED: 1}, "nothing"
    for reason, text, client, test in (
        (
            ShedReason.QUEUE_FULL,
            "the queue is full",
            Client.UNAVAILABLE,
            "requests_wait_in_order_and_further_ones_are_shed[{order}]",
        ),
        (
            ShedReason.QUEUE_TIMEOUT,
            "it waits too long for its turn",
            Client.UNAVAILABLE,
            "a_wait_that_is_too_long_is_shed",
        ),
        (
            ShedReason.CLIENT_LIMIT,
            "its client has too many open",
            "429 with `Retry-After`",
            "one_client_has_a_limit_of_its_own",
        ),
        (ShedReason.BYTES, "too many bytes are held", Client.UNAVAILABLE, "bodies_are_bounded[length]"),
    ):
        counters = f"`pdx_requests_shed_total` {reason} 1"
        yield Row(
            f"shed-{reason}",
            Phase.QUEUE,
            text,
            client,
            shed,
            engines=nothing,
            counters=counters,
            test=_OVERLOAD + test,
        )
    yield Row(
        "burst",
        Phase.QUEUE,
        "the wait at every P would use up the TTFT objective, and D's streams keep their TPOT",
        Client.RIGHT,
        {Outcome.WHOLE: 1},
        engines="P nothing, D whole 1",
        counters="`pdx_not_split_total` burst 1",
        test="component/serving/test_bursts.py::test_requests_burst_to_d_when_every_p_would_be_late[{order}]",
    )
    yield Row(
        "queued-long",
        Phase.QUEUE,
        "it waits for nearly as long as `total`",
        "the right answer: the queue does not count",
        {Outcome.SPLIT: 1},
        orders=PULL,
        engines="one leg each",
        test="unit/proxy/serving/test_attempts.py::test_a_wait_in_the_queue_does_not_use_up_the_whole_deadline",
    )
    yield Row(
        "crowded",
        Phase.QUEUE,
        "another client has filled the queue",
        "the right answer, soon; fair queueing",
        {Outcome.SPLIT: 1},
        orders=PULL,
        engines="one leg each",
        test="component/admission/test_limits.py::test_a_client_with_one_request_does_not_wait_for_those_of_another",
    )
    yield Row(
        "slow-body",
        Phase.QUEUE,
        "other clients send heads and no bodies",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        orders=PULL,
        engines="one leg each",
        counters="heads hold no slot, and only the bytes that have arrived",
        test="component/admission/test_limits.py::test_a_body_that_does_not_come_holds_nothing",
    )
    yield Row(
        "prefill-full",
        Phase.QUEUE,
        "every P has as many requests as its limit allows",
        "the right answer, after a wait in the queue",
        {Outcome.SPLIT: 1},
        orders=PULL,
        engines="no more legs than the limit at P",
        test="component/admission/test_limits.py::test_a_prefill_has_a_limit_of_its_own",
    )
    yield Row(
        "decode-full-shared",
        Phase.QUEUE,
        "several gateways have more requests than D can run",
        "the right answer, after a wait in a gateway's queue",
        {Outcome.SPLIT: 1},
        orders=PULL,
        engines="D runs all that it can; at most 4, or a tenth, wait in its queue",
        test="unit/proxy/balancing/test_limits_over_time.py::"
        "test_a_decode_runs_what_it_can_and_its_queue_stays_short[64-0.02-2]",
    )
    yield Row(
        "decode-waves",
        Phase.QUEUE,
        "all requests of a full D end within a second",
        "the right answer, after a wait in a gateway's queue",
        {Outcome.SPLIT: 1},
        orders=PULL,
        engines="D gets as many as before",
        test="unit/proxy/balancing/test_engine_limits.py::test_requests_that_end_together_do_not_raise_the_rate",
    )
    yield Row(
        "decode-unread",
        Phase.QUEUE,
        "other clients do not read answers that D has generated",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        orders=PULL,
        engines="their legs take no room",
        test="component/http/test_slow_peers.py::test_answers_that_nobody_reads_take_no_room",
    )
    yield Row(
        "bytes-large",
        Phase.QUEUE,
        "other clients fill the buffered bytes with large bodies, and its own is small",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        orders=PULL,
        engines="one leg each",
        counters="`pdx_requests_shed_total` bytes: the large ones",
        test="unit/proxy/admission/test_admission.py::test_large_bodies_leave_bytes_to_small_ones",
    )
    yield Row(
        "retried-full",
        Phase.PREFILL,
        "P fails, and every D has as many requests as its limit allows",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        orders=PULL,
        engines="further attempts do not wait; D's get them in proportion to their limits",
        test="unit/proxy/serving/test_attempts.py::test_attempts_that_do_not_wait_are_divided_by_the_engines_limits",
    )
    yield Row(
        "left-settling",
        Phase.PREFILL,
        "the client leaves, and its hand-off is settled for some time",
        _GONE,
        _LEFT,
        settled={Settlement.FINISHED: 1},
        orders=PUSH,
        engines="P finishes",
        counters="the request holds its slot, its bytes and its client's place until then",
        test="component/admission/test_limits.py::test_a_client_that_left_holds_its_slot_until_all_is_settled",
    )
    yield Row(
        "left-queue",
        Phase.QUEUE,
        "the client leaves the queue",
        _GONE,
        _LEFT,
        engines=nothing,
        test=_OVERLOAD + "a_client_that_disconnects_leaves_the_queue",
    )
    yield Row(
        "impatient",
        Phase.QUEUE,
        "clients leave the queue again and again",
        "the right answer: the newest come first, and every twelfth time the oldest",
        {Outcome.SPLIT: 1},
        orders=PULL,
        engines="one leg each, for clients that have not left",
        test=_OVERLOAD + "after_a_client_gave_up_the_newest_come_first",
    )
