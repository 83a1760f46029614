"""The rows of docs/failures.md about slow and vanishing peers, and about streams that are unusual or have no end."""

from collections.abc import Iterator
from typing import Final

from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome
from tests.failure_matrix.row import STREAM, WHOLE, Client, Phase, Row

_SLOW: Final = "component/http/test_slow_peers.py::test_"
_EVENTS: Final = "component/http/test_event_streams.py::test_"
_ALONE: Final = {Outcome.WHOLE: 1}
_BROKEN: Final = {Outcome.BROKEN: 1}
_AGAIN: Final = "D whole 2"
_READS_NOTHING: Final = "the client accepts no byte for 60 s while bytes wait for it"


def _clients() -> Iterator[Row]:
    """Clients that accept nothing, leave unseen, or send a head alone; on both servers."""
    for path in ("fast", "fallback"):
        for state, text, outcome, streams in (
            ("stream", "", Outcome.CLIENT_LEFT, STREAM),
            ("whole", " of an answer that is complete", Outcome.SPLIT, WHOLE),
            ("closing", " of a connection that closes", Outcome.SPLIT, WHOLE),
        ):
            yield Row(
                f"reads-nothing-{state}-{path}",
                Phase.ANSWER,
                f"{_READS_NOTHING}{text} ({path})",
                "a reset, up to 10 s later",
                {outcome: 1},
                streams=streams,
                engines="D is closed and stops" if outcome is Outcome.CLIENT_LEFT else "one leg each",
                test=f"{_SLOW}a_client_that_reads_nothing_is_cut[{state}-{path}]",
            )
        yield Row(
            f"left-ahead-{path}",
            Phase.DECODE,
            f"a pipelining client is gone, from which the gateway does not read ({path})",
            "nothing: it has left",
            {Outcome.CLIENT_LEFT: 1},
            streams=WHOLE,
            engines="D is closed, up to 5 s later",
            test=f"{_SLOW}a_pipelining_client_that_leaves_is_noticed[{path}]",
        )
        yield Row(
            f"heads-only-{path}",
            Phase.QUEUE,
            f"other clients declare bodies and do not send them ({path})",
            Client.RIGHT,
            {Outcome.SPLIT: 1},
            streams=WHOLE,
            engines="one leg each; a body that is not complete has no slot, and only its bytes that have arrived count",
            test=f"{_SLOW}declared_bodies_take_nothing[{path}]",
        )
        yield Row(
            f"stop-unread-{path}",
            Phase.ANSWER,
            f"the gateway gets SIGTERM while a client has not accepted its complete answer ({path})",
            Client.RIGHT,
            {Outcome.SPLIT: 1},
            streams=WHOLE,
            engines="one leg each",
            test=f"{_SLOW}the_last_bytes_are_sent_before_the_process_ends[{path}]",
        )


def _engines() -> Iterator[Row]:
    """Engines whose hosts vanish, and unusual streams."""
    yield Row(
        "host-vanishes",
        Phase.DECODE,
        "an engine's host vanishes without a FIN",
        "as after any lost connection, 30 s later: TCP keep-alive and TCP_USER_TIMEOUT",
        engines="as after any lost connection",
        counters="as after any lost connection",
        test=_SLOW + "the_kernel_notices_peers_that_vanish",
    )
    yield Row(
        "breaks-off",
        Phase.DECODE,
        "D closes the connection behind the head of its stream, as vLLM does when that fails; the next D does not",
        Client.RIGHT,
        _ALONE,
        {Reason.LOST: 1},
        streams=STREAM,
        engines="a health check of D, which stays in use; the request at another D",
        test="component/handoff/test_faults.py::test_an_answer_that_breaks_off_ejects_no_engine[{order}-die_after_head]",
    )
    yield Row(
        "breaks-off-each",
        Phase.ANSWER,
        "D breaks off each stream, five in turn without a whole answer between",
        Client.EVENT,
        _BROKEN,
        streams=STREAM,
        engines="D is ejected, within the limits of ejections by errors",
        test="component/handoff/test_faults.py::test_an_engine_that_breaks_off_each_stream_is_ejected[{order}]",
    )
    for name, text, reason in (
        ("comments", "D sends comments (`: keep-alive`) and dies", Reason.LOST),
        ("crlf-comments", "D, whose lines end in CR LF, sends comments and dies", Reason.LOST),
        ("response-created", "D dies behind `response.created` and `response.in_progress`", Reason.LOST),
        ("message-start", "D dies behind `message_start`", Reason.LOST),
        ("message-error", "D sends `event: error` of `/v1/messages`", Reason.ERROR_EVENT),
        ("response-failed", "D sends `response.failed` of `/v1/responses`", Reason.ERROR_EVENT),
    ):
        yield Row(
            f"announced-{name}",
            Phase.DECODE,
            f"{text}; the second attempt does not",
            Client.RIGHT,
            _ALONE,
            {reason: 1},
            streams=STREAM,
            engines=_AGAIN,
            test=f"{_EVENTS}what_proves_nothing_is_followed_by_another_attempt[{name}]",
        )
    for name, client in (
        ("completions", Client.EVENT),
        ("messages", "`event: error` in Anthropic's shape, without `[DONE]`"),
        ("responses", "`event: error` in the shape of OpenAI's Responses, without `[DONE]`"),
    ):
        for lines, text in (("lf", ""), ("crlf", ", whose lines end in CR LF,")):
            yield Row(
                f"stream-dies-{name}-{lines}",
                Phase.ANSWER,
                f"D{text} dies between two events of `/v1/{name}`",
                client,
                _BROKEN,
                streams=STREAM,
                engines="D whole 1",
                test=f"{_EVENTS}a_broken_stream_ends_in_its_own_shape[{name}-{lines}]",
            )
    yield Row(
        "crlf",
        Phase.ANSWER,
        "D's lines end in CR LF",
        Client.AS_IT_CAME,
        _ALONE,
        streams=STREAM,
        engines="D whole 1",
        test=_EVENTS + "crlf_streams_are_relayed_as_they_come[1]",
    )


def _bounds() -> Iterator[Row]:
    """Answers without an end."""
    for name, text, reason in (
        ("status-500", "D answers 500 with more than 1 MiB", Reason.STATUS),
        ("head", "D's head is longer than 64 KiB", Reason.LOST),
    ):
        yield Row(
            f"endless-{name}",
            Phase.DECODE,
            f"{text}; the second attempt does not",
            Client.RIGHT,
            _ALONE,
            {reason: 1},
            streams=STREAM,
            engines=_AGAIN,
            test=f"{_EVENTS}an_answer_without_an_end_is_bounded[{name}]",
        )
    yield Row(
        "endless-event",
        Phase.DECODE,
        "D's first event is longer than 1 MiB",
        Client.AS_IT_CAME,
        _ALONE,
        streams=STREAM,
        engines="D whole 1",
        test=_EVENTS + "a_long_event_is_relayed_before_its_end",
    )
    yield Row(
        "endless-prefill",
        Phase.PREFILL,
        "P's answer is longer than 16 MiB",
        "as after any lost connection",
        engines="P is closed",
        counters="as after any lost connection",
        test="unit/proxy/engines/test_leg.py::test_a_whole_answer_is_bounded",
    )


def peer_rows() -> tuple[Row, ...]:
    """All of these rows."""
    return (*_clients(), *_engines(), *_bounds())
