"""The rows of docs/failures.md that have tests of their own: clients that leave, processes that end, deadlines."""

from collections.abc import Iterator
from typing import Final

from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome, Settlement, ShedReason
from tests.failure_matrix import bodies
from tests.failure_matrix.row import POLICIES, PULL, PUSH, STREAM, WHOLE, Client, Phase, Row

_LEFT: Final = {Outcome.CLIENT_LEFT: 1}
_GONE: Final = "nothing: it has left"
_LEAVING: Final = "component/handoff/test_leaving.py::test_"
_ENDINGS: Final = "component/handoff/test_endings.py::test_"
_CHANGING: Final = "component/health/test_changing_engines.py::test_"
_OVER_HTTP: Final = "component/http/test_http.py::test_"
_OVERLOAD: Final = "component/admission/test_overload.py::test_"
_SUPERVISION: Final = "component/process/test_supervision.py::test_"
_WATCHDOG: Final = "component/process/test_watchdog.py::test_"
_HUNG: Final = "component/health/test_hung.py::test_"
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
        test=_HUNG + "an_engine_without_progress_is_stalled_and_a_long_prefill_is_not",
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


def _deleted() -> Iterator[Row]:
    """Engines are deleted, restarted, lost."""
    for phase, name in ((Phase.PREFILL, "prefill"), (Phase.DECODE, "decode"), (Phase.ANSWER, "answer")):
        shared = "[{order}-{shape}-" + name + "]"
        yield Row(
            f"deleted-{name}",
            phase,
            "P and D are deleted",
            Client.RIGHT,
            {Outcome.SPLIT: 1},
            engines="open legs finish; nothing new",
            test=f"{_ENDINGS}a_pair_that_is_deleted_finishes_what_it_has{shared}",
        )
        yield Row(
            f"sigterm-{name}",
            phase,
            "the gateway gets SIGTERM",
            Client.RIGHT,
            {Outcome.SPLIT: 1},
            engines="open legs finish",
            test=f"{_ENDINGS}the_gateway_finishes_what_runs{shared}",
        )
    yield Row(
        "deleted-decode-stand-in",
        Phase.PREFILL,
        "D is deleted; there is another",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        orders=PULL,
        engines="the other D gets the leg",
        test=_CHANGING + "a_decode_that_leaves_during_the_prefill_gets_no_leg[{shape}]",
    )
    yield Row(
        "node-lost",
        Phase.ANSWER,
        "D's node is gone, which ends no connection",
        "without an event yet: the right answer; else an error event or a cut",
        {Outcome.BROKEN: 1, Outcome.WHOLE: 1},
        streams=STREAM,
        engines="its legs are cut 30 s after its pod is gone",
        test=_CHANGING + "open_legs_of_a_lost_node_are_cut[{order}]",
    )
    yield Row(
        "prefill-killed",
        Phase.PREFILL,
        "P dies for good while D waits: D keeps blocks until it is started again",
        Client.RIGHT,
        {Outcome.WHOLE: 1},
        {Reason.LOST: 1},
        {Settlement.DECODE_LOST: 1},
        orders=PUSH,
        engines="D is closed; `pdx_decode_kv_leaked{endpoint}` and `/pdx/state` name it",
        test=_ENDINGS + "a_prefill_that_dies_for_good_is_counted_against_its_decode[{shape}-{order}]",
    )
    yield Row(
        "prefill-killed-late",
        Phase.DECODE,
        "P dies behind its answer, its push under way",
        Client.RIGHT,
        {Outcome.WHOLE: 1},
        {Reason.LOST: 1},
        {Settlement.DECODE_LOST: 1},
        orders=PUSH,
        engines="D is closed, D whole 1",
        test=_ENDINGS + "a_prefill_that_dies_behind_its_answer[{shape}-{order}]",
    )
    yield Row(
        "decode-stops",
        Phase.ANSWER,
        'D shuts down and ends its answers with "abort"',
        Client.AS_IT_CAME,
        {Outcome.SPLIT: 1},
        streams=STREAM,
        engines="one leg each",
        test=_ENDINGS + "an_engine_that_shuts_down_aborts[{order}-{shape}]",
    )
    yield Row(
        "decode-stops-whole",
        Phase.DECODE,
        'the only D shuts down and ends its answers with "abort"',
        Client.UNAVAILABLE,
        {Outcome.UNAVAILABLE: 1},
        {Reason.ABORT: 1},
        (Settlement.FINISHED, Settlement.LEASE),
        streams=WHOLE,
        engines="one leg each",
        test=_ENDINGS + "an_engine_that_shuts_down_aborts[{order}-{shape}]",
    )


def _workers() -> Iterator[Row]:
    """Workers that do not serve. The rows are about requests that no worker has read."""
    for id_, text, client, engines, test in (
        (
            "worker-stopped",
            "a worker is stopped by a signal",
            Client.RIGHT,
            "one leg each, after another worker has taken its place",
            "a_stopped_worker_is_replaced",
        ),
        (
            "worker-spins",
            "a worker computes and serves nothing",
            Client.RIGHT,
            "one leg each, after another worker has taken its place",
            "a_worker_that_spins_is_replaced",
        ),
        (
            "workers-dead",
            "all workers are dead, and none can be started: `/readyz` answers 503",
            "503 with `Retry-After`, or a refused connection",
            "nothing",
            "all_workers_dead_and_no_start_succeeds",
        ),
        (
            "worker-start-fails",
            "a worker ends, and its next start fails",
            Client.RIGHT,
            "nothing; the start is repeated",
            "an_error_of_any_kind_starts_the_worker_again",
        ),
        (
            "backlog",
            "SIGTERM, while its connection waits to be accepted",
            Client.RIGHT,
            "one leg each",
            "connections_in_the_backlog_are_served",
        ),
        (
            "shutdown-head",
            "SIGTERM, after a part of its head",
            Client.UNAVAILABLE,
            "nothing",
            "an_incomplete_head_is_answered",
        ),
        (
            "shutdown-connections",
            "SIGTERM, while clients connect to several workers",
            "the right answer, 503, or a refused connection; never a reset",
            "one leg each, or nothing",
            "no_connection_is_reset_while_the_gateway_ends",
        ),
    ):
        yield Row(
            id_,
            Phase.QUEUE,
            text,
            client,
            {Outcome.SPLIT: 1} if client is Client.RIGHT else {},
            orders=PULL,
            streams=WHOLE,
            engines=engines,
            counters="" if client is Client.RIGHT else "none",
            test=_SUPERVISION + test,
        )


def _gateway() -> Iterator[Row]:
    """The gateway itself."""
    for streams, client in ((STREAM, Client.EVENT), (WHOLE, "its connection closed")):
        yield Row(
            f"grace-{'stream' if streams == STREAM else 'whole'}",
            Phase.ANSWER,
            "the time after SIGTERM is over",
            client,
            _LEFT,
            streams=streams,
            engines="D is closed",
            test=_ENDINGS + "the_gateway_waits_no_longer_than_its_grace_period[{order}-{shape}]",
        )
    yield Row(
        "internal",
        Phase.DECODE,
        "an error of the gateway's own",
        "500; amid an answer, a cut",
        {Outcome.INTERNAL: 1},
        engines="settled as if the client had left",
        counters="a line in the log",
        test="component/process/test_logs.py::test_an_error_inside_is_an_outcome_of_its_own[{order}-{shape}]",
    )
    yield Row(
        "worker-dies",
        Phase.ANSWER,
        "a worker is killed",
        Client.CUT,
        streams=STREAM,
        engines="D's connection ends and it stops; another worker takes its place",
        counters="none: they die with it",
        test="component/process/test_workers.py::test_a_worker_that_dies_cuts_its_streams",
    )
    yield from _workers()
    yield Row(
        "budget",
        Phase.PREFILL,
        "every engine answers 503, and the retry budget is used up",
        Client.ENGINES,
        {Outcome.UNAVAILABLE: 1},
        {Reason.STATUS: 1},
        engines="hardly more legs than requests",
        counters="`pdx_retries_refused_total` 1",
        test="component/admission/test_retries.py::test_failures_become_no_storm[{order}]",
    )
    yield Row(
        "one-attempt",
        Phase.PREFILL,
        "P answers 500 and `attempts` is 1",
        Client.ENGINES,
        {Outcome.UNAVAILABLE: 1},
        {Reason.STATUS: 1},
        streams=WHOLE,
        policies=POLICIES,
        engines="one leg to P",
        test="component/admission/test_retries.py::test_one_attempt_is_one[{order}-{policy}]",
    )


def _limits() -> Iterator[Row]:
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


def scenarios() -> tuple[Row, ...]:
    """The rows that have tests of their own."""
    return (*_clients(), *_deadlines(), *_ejections(), *_deleted(), *_gateway(), *bodies.rows(), *_limits())
