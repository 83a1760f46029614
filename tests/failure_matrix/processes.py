"""The rows about engines that are deleted or change, and about the gateway's own processes."""

from collections.abc import Iterator
from typing import Final

from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome, Settlement
from tests.failure_matrix.row import POLICIES, PULL, PUSH, STREAM, WHOLE, Client, Phase, Row

_LEFT: Final = {Outcome.CLIENT_LEFT: 1}
_ENDINGS: Final = "component/handoff/test_endings.py::test_"
_CHANGING: Final = "component/health/test_changing_engines.py::test_"
_SUPERVISION: Final = "component/process/test_supervision.py::test_"


def deleted() -> Iterator[Row]:
    """Engines are deleted, restarted, lost."""
    for phase, name in ((Phase.PREFILL, "prefill"), (Phase.DECODE, "decode"), (Phase.ANSWER, "answer")):
        shared = "[{order}-{text}-" + name + "]"
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
        test=_ENDINGS + "a_prefill_that_dies_for_good_is_counted_against_its_decode[{text}-{order}]",
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
        test=_ENDINGS + "a_prefill_that_dies_behind_its_answer[{text}-{order}]",
    )
    yield Row(
        "decode-stops",
        Phase.ANSWER,
        'D shuts down and ends its answers with "abort"',
        Client.AS_IT_CAME,
        {Outcome.SPLIT: 1},
        streams=STREAM,
        engines="one leg each",
        test=_ENDINGS + "an_engine_that_shuts_down_aborts[{order}-{text}]",
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
        test=_ENDINGS + "an_engine_that_shuts_down_aborts[{order}-{text}]",
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


def gateway() -> Iterator[Row]:
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
            test=_ENDINGS + "the_gateway_waits_no_longer_than_its_grace_period[{order}-{text}]",
        )
    for id_, text, test in (
        ("certificate", "the files of its certificate are replaced",
         "a_new_certificate_is_used_and_open_connections_stay"),
        ("certificate-wrong", "the files of its certificate are missing, broken or do not match",
         "a_wrong_certificate_changes_nothing_and_is_logged_once"),
        ("certificate-rotates", "the files of its certificate are replaced while clients connect",
         "curl_loses_no_request_while_the_certificate_rotates[1]"),
    ):  # fmt: skip
        yield Row(
            id_,
            Phase.QUEUE,
            text,
            Client.RIGHT,
            {Outcome.SPLIT: 1},
            orders=PULL,
            streams=WHOLE,
            engines="one leg each",
            test=f"component/http/test_tls.py::test_{test}",
        )
    for id_, text, counters, test in (
        ("receiver-refuses", "the receiver of traces answers errors, or is gone",
         "`pdx_trace_spans_total{result=\"failed\"}`, a line in the log",
         "a_lost_receiver_delays_no_request_and_is_counted"),
        ("receiver-hangs", "the receiver of traces accepts connections and does not answer",
         "`pdx_trace_spans_total{result=\"dropped\"}`",
         "spans_that_wait_too_long_are_dropped_and_counted"),
        ("receiver-storm", "more requests than 20 in a second fail or are slow, and none is sampled",
         "`pdx_trace_spans_total{result=\"limited\"}`",
         "a_storm_of_failures_is_not_one_of_spans"),
    ):  # fmt: skip
        yield Row(
            id_,
            Phase.ANSWER,
            text,
            Client.RIGHT,
            {Outcome.SPLIT: 1},
            orders=PULL,
            streams=WHOLE,
            engines="one leg each",
            counters=counters,
            test=f"component/serving/test_traces.py::test_{test}",
        )
    yield Row(
        "internal",
        Phase.DECODE,
        "an error of the gateway's own",
        "500; amid an answer, a cut",
        {Outcome.INTERNAL: 1},
        engines="settled as if the client had left",
        counters="a line in the log",
        test="component/process/test_logs.py::test_an_error_inside_is_an_outcome_of_its_own[{order}-{text}]",
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
