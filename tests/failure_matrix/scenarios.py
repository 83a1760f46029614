"""The rows of docs/failures.md that have tests of their own: clients that leave, processes that end, deadlines."""

from collections.abc import Iterator
from typing import Final

from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome, Settlement
from tests.failure_matrix import bodies, clients, limits, processes
from tests.failure_matrix.row import PULL, PUSH, STREAM, WHOLE, Client, Phase, Row

_LEFT: Final = {Outcome.CLIENT_LEFT: 1}
_GONE: Final = "nothing: it has left"
_LEAVING: Final = "component/handoff/test_leaving.py::test_"
_OVER_HTTP: Final = "component/http/test_http.py::test_"
_WATCHDOG: Final = "component/process/test_watchdog.py::test_"
_HUNG: Final = "component/health/test_hung.py::test_"
_FROZEN: Final = "component/health/test_frozen.py::test_"
_HEALTH: Final = "component/health/test_health.py::test_"


def _clients() -> Iterator[Row]:
    """The client leaves, or is slow."""
    for id_, phase, text, engines, test in (
        ("body", Phase.QUEUE, "before its body is here", "nothing", "before_the_body_is_complete[{order}]"),
        ("connecting", Phase.QUEUE, "while P is connected to", "nothing", "while_connecting[{order}-{shape}-prefill]"),
    ):
        yield Row(
            f"left-{id_}", phase, f"the client leaves {text}", _GONE, _LEFT, engines=engines, test=_LEAVING + test
        )
    prefill = "while_prefill_computes[{order}-{shape}-used-connections]"
    leaves = "the client leaves"
    yield Row(
        "left-prefill",
        Phase.PREFILL,
        leaves,
        _GONE,
        _LEFT,
        settled={Settlement.PREFILL_STOPPED: 1},
        orders=PULL,
        engines="P is closed after 1 s, unless it finishes before; D nothing",
        test=_LEAVING + prefill,
    )
    yield Row(
        "left-prefill-push",
        Phase.PREFILL,
        leaves,
        _GONE,
        _LEFT,
        settled={Settlement.FINISHED: 1},
        orders=PUSH,
        engines="P finishes; then D is closed",
        test=_LEAVING + prefill,
    )
    for orders, settled, engines in (
        (PULL, Settlement.PREFILL_STOPPED, "P is closed"),
        (PUSH, Settlement.DECODE_LOST, "P gets its leg twice, until its deadline; then D is closed"),
    ):
        yield Row(
            f"left-hanging-{settled}",
            Phase.PREFILL,
            "the client leaves a P that hangs",
            _GONE,
            _LEFT,
            settled={settled: 1},
            orders=orders,
            engines=engines,
            test=_LEAVING + "a_hanging_prefill_is_let_go[{order}-{shape}]",
        )
    yield Row(
        "left-between",
        Phase.BETWEEN,
        leaves,
        _GONE,
        _LEFT,
        settled={Settlement.RELEASED: 1},
        orders=PULL,
        engines="D refuses a leg, whereupon P frees its blocks",
        test=_LEAVING + "between_the_legs[{shape}]",
    )
    for pair, text in (("old-pair", ""), ("new-pair", " a pair that has not exchanged KV before")):
        yield Row(
            f"left-waiting-{pair}",
            Phase.DECODE,
            f"the client leaves{text}",
            _GONE,
            _LEFT,
            settled=(Settlement.RELEASED, Settlement.FINISHED, Settlement.LEASE),
            engines="D is closed once P knows of it; nothing stays held",
            test=_LEAVING + f"while_decode_waits_for_kv[{{order}}-{{shape}}-{pair}]",
        )
    for streams, test in ((STREAM, "in_the_stream"), (WHOLE, "without_a_stream")):
        yield Row(
            f"left-{test}",
            Phase.ANSWER,
            leaves,
            _GONE,
            _LEFT,
            streams=streams,
            engines="D is closed and stops",
            test=f"{_LEAVING}{test}[{{order}}]",
        )
    yield Row(
        "slow-reader",
        Phase.ANSWER,
        "the client reads slowly",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        streams=STREAM,
        engines="D is read as slowly; that is not idle",
        test=_OVER_HTTP + "a_slow_reader_slows_the_engine_down[fast]",
    )
    yield Row(
        "slow-reader-idle",
        Phase.ANSWER,
        "the client reads so slowly that D is paused for longer than `idle`",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        streams=STREAM,
        engines="D is read as slowly",
        test="unit/proxy/http/test_idle.py::test_a_paused_engine_is_not_idle",
    )
    yield Row(
        "old-client",
        Phase.ANSWER,
        "D dies, and the client speaks HTTP/1.0",
        "a reset",
        {Outcome.BROKEN: 1},
        streams=STREAM,
        engines="one leg each",
        test="component/http/test_broken_streams.py::test_an_old_client_sees_a_cut[{order}]",
    )


def _deadlines() -> Iterator[Row]:
    """Failures of a push that no engine reports."""
    yield Row(
        "push-lost",
        Phase.DECODE,
        "P has answered and its push does not come: `handoff` passes",
        Client.RIGHT,
        {Outcome.WHOLE: 1},
        {Reason.DEADLINE: 1},
        {Settlement.DECODE_LOST: 1},
        orders=PUSH,
        streams=STREAM,
        engines="D is closed; both are checked, and neither is ejected",
        test=_WATCHDOG + "a_push_that_does_not_come_is_given_up[{order}]",
    )
    yield Row(
        "push-queued",
        Phase.DECODE,
        "P has answered, and D still queues the request when `handoff` passes",
        Client.RIGHT,
        {Outcome.WHOLE: 1},
        {Reason.DEADLINE: 1},
        {Settlement.RELEASED: 1},
        orders=PUSH,
        streams=STREAM,
        engines="D is closed, which loses no block; both are checked, and neither is ejected",
        test=_WATCHDOG + "a_push_is_not_lost_while_decode_queues_the_request[{order}]",
    )
    yield Row(
        "push-late",
        Phase.DECODE,
        "P has answered and its push comes late. Without a stream it looks like a long answer",
        "the right answer; 504 after `total`",
        {Outcome.SPLIT: 1},
        orders=PUSH,
        streams=WHOLE,
        engines="one leg each",
        test=_WATCHDOG + "without_a_stream_the_whole_answer_has_its_own_deadline[{order}]",
    )


def _ejections() -> Iterator[Row]:
    """What ejects an engine, and what does not."""
    yield Row(
        "slow-to-one",
        Phase.DECODE,
        "the only D sends nothing to one request until a deadline, and answers its health check",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        {Reason.DEADLINE: 1},
        streams=STREAM,
        engines="D is checked and stays in use; D whole or 2",
        test=_HUNG + "a_deadline_of_a_request_ejects_nothing[{order}]",
    )
    yield Row(
        "slow-in-a-worker",
        Phase.DECODE,
        "D answers neither a request of one of several workers nor its health checks; another D does",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        {Reason.DEADLINE: 1},
        orders=PULL,
        streams=STREAM,
        engines="D is ejected; P 2, D 2",
        counters="`pdx_ejections_total` timeout 1",
        test=_HUNG + "an_engine_that_hangs_in_a_worker_process_is_ejected",
    )
    yield Row(
        "frozen-idle-prefill",
        Phase.QUEUE,
        "before it, the process of the only P was stopped while it had no work: its port is open, and nothing answers",
        Client.RIGHT,
        {Outcome.WHOLE: 1},
        orders=PULL,
        streams=WHOLE,
        engines="P is ejected by health checks before the request; D whole 1",
        counters="`pdx_ejections_total` timeout 1",
        test=_FROZEN + "a_frozen_prefill_is_ejected_without_requests",
    )
    yield Row(
        "queued-at-decode",
        Phase.DECODE,
        "D queues the request for longer than `handoff`",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        orders=PULL,
        streams=STREAM,
        engines="D renews P's lease; none is ejected",
        test=_HUNG + "streams_wait_in_the_queue_of_an_engine",
    )
    yield Row(
        "long-queue",
        Phase.QUEUE,
        "D's queue is longer than a push survives",
        Client.RIGHT,
        {Outcome.WHOLE: 1},
        orders=PUSH,
        streams=WHOLE,
        engines="D whole 1",
        counters="`pdx_local_prefills_total` long_queue 1",
        test=_HUNG + "a_decode_with_a_long_queue_gets_whole_requests[{order}]",
    )
    yield Row(
        "stalled",
        Phase.DECODE,
        "D's core hangs: requests run and make no progress; another D does not",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        {Reason.LOST: 1},
        orders=PULL,
        streams=WHOLE,
        engines="D is ejected and lets go of requests without a first event; P 2, D 2",
        counters="`pdx_ejections_total` stalled 1",
        test=_HUNG + "a_hung_engine_lets_go_of_requests_that_wait",
    )
    unit = "unit/proxy/"
    for id_, fails, engines, test in (
        (
            "failing-role",
            "engines of one role answer 5xx, or hand-offs fail at them",
            "at most half of the role is ejected, and never the last one",
            f"{unit}health/test_ejection.py::test_over_any_sequence_inference_is_bounded",
        ),
        (
            "failing-decode",
            "D answers 500 to the hand-offs of every P",
            "D is ejected if another can replace it; no P is",
            f"{unit}engines/test_observer.py::test_a_decode_that_fails_with_every_prefill_is_at_fault",
        ),
    ):
        yield Row(
            id_, Phase.DECODE, fails, Client.ENGINES, {Outcome.UNAVAILABLE: 1}, orders=PULL, engines=engines, test=test
        )
    yield Row(
        "long-prefill",
        Phase.PREFILL,
        "P computes one prompt for two minutes",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        orders=PULL,
        streams=WHOLE,
        engines="P's metrics show progress with every chunk; it is not ejected",
        test=f"{unit}health/test_progress.py::test_an_engine_without_progress_is_stalled_and_a_long_prefill_is_not",
    )
    yield Row(
        "decode-500-innocent-prefill",
        Phase.DECODE,
        "D answers 500 to a request that P has prefilled; another D does not",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        {Reason.STATUS: 1},
        orders=PULL,
        streams=WHOLE,
        engines="P is checked; none is ejected",
        test=_HEALTH + "an_error_of_a_decode_does_not_eject_its_prefill",
    )


def scenarios() -> tuple[Row, ...]:
    """The rows that have tests of their own."""
    return (
        *_clients(),
        *_deadlines(),
        *_ejections(),
        *processes.deleted(),
        *processes.gateway(),
        *bodies.rows(),
        *limits.limits(),
        *clients.rows(),
    )
