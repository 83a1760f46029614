"""The rows of docs/failures.md about engines that are busy, comments in streams, and requests that no engine gets."""

from collections.abc import Iterator
from typing import Final

from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome, Settlement
from tests.failure_matrix.row import PULL, STREAM, WHOLE, Client, Phase, Row

_BUSY: Final = "component/serving/test_retry_after.py::test_"
_COMMENTS: Final = "component/serving/test_stream_keep_alive.py::test_"
_MODELS: Final = "component/serving/test_models.py::test_"
_HTTP: Final = "component/http/test_client_expectations.py::test_"
_EVENT: Final = "status 200; behind the comments, an error event and `[DONE]`"
_NOTHING: Final = "nothing"


def _busy() -> Iterator[Row]:
    """An engine answers 429 or 503 with Retry-After."""
    yield Row(
        "busy-decode",
        Phase.DECODE,
        "D answers 429 or 503 with `Retry-After`; another D does not",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        {Reason.STATUS: 1},
        streams=WHOLE,
        engines="the busy D gets no request for that time, at most 60 s; nothing is ejected",
        test=_BUSY + "another_decode_serves_meanwhile[{order}-429]",
    )
    yield Row(
        "busy-decode-settles",
        Phase.DECODE,
        "the same: P's KV is pinned, and the busy D has not read it",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        {Reason.STATUS: 1},
        settled={Settlement.RELEASED: 1},
        orders=PULL,
        streams=WHOLE,
        engines="another D frees P's blocks",
        test=_BUSY + "a_busy_decode_frees_nothing",
    )
    yield Row(
        "busy-prefill",
        Phase.PREFILL,
        "P answers 429 or 503 with `Retry-After`; another P does not",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        {Reason.STATUS: 1},
        streams=WHOLE,
        engines="the busy P gets no other request for that time; nothing is ejected",
        test=_BUSY + "another_prefill_serves_meanwhile[{order}-429]",
    )
    yield Row(
        "busy-prefills",
        Phase.PREFILL,
        "every P answers 503 with `Retry-After`",
        Client.RIGHT,
        {Outcome.WHOLE: 1},
        {Reason.STATUS: 1},
        orders=PULL,
        streams=WHOLE,
        engines="D serves alone for that time; P's get nothing",
        test=_BUSY + "decode_serves_alone_while_every_prefill_is_busy",
    )
    yield Row(
        "busy-all",
        Phase.DECODE,
        "every D answers 429 or 503 with `Retry-After`",
        "D's answer with its `Retry-After`; for that time 503 with what is left of it",
        {Outcome.UNAVAILABLE: 1},
        {Reason.STATUS: 1},
        engines="nothing for that time",
        test=_BUSY + "clients_get_the_time[{order}-{stream}-429]",
    )


def _comments() -> Iterator[Row]:
    """What fails behind a comment that has committed a stream to status 200 (streamKeepAliveSeconds)."""
    yield Row(
        "comment-retry",
        Phase.DECODE,
        "D answers 500 after a comment was sent; another D does not",
        Client.RIGHT,
        {Outcome.SPLIT: 1},
        {Reason.STATUS: 1},
        streams=STREAM,
        engines="as without comments",
        test=_COMMENTS + "attempts_go_on_behind_a_comment[{order}-status]",
    )
    for name, text, outcome in (
        ("503", "every attempt fails", Outcome.UNAVAILABLE),
        ("400", "D refuses the request", Outcome.REFUSED_BY_ENGINE),
    ):
        yield Row(
            f"comment-{name}",
            Phase.DECODE,
            f"{text} after a comment was sent",
            _EVENT,
            {outcome: 1},
            orders=PULL,
            streams=STREAM,
            engines="as without comments",
            test=f"{_COMMENTS}an_error_behind_a_comment_is_an_event[{name}]",
        )
    yield Row(
        "comment-expired",
        Phase.PREFILL,
        "the request takes longer than `total` after a comment was sent",
        f"{_EVENT}, with code 504",
        {Outcome.EXPIRED: 1},
        orders=PULL,
        streams=STREAM,
        engines="as without comments",
        test=_COMMENTS + "an_expired_request_ends_with_an_event",
    )
    yield Row(
        "comment-shutdown",
        Phase.PREFILL,
        "the gateway shuts down after a comment was sent, and its time is over",
        f"{_EVENT}, with code 503, also over HTTP/1.0",
        {Outcome.CLIENT_LEFT: 1},
        orders=PULL,
        streams=STREAM,
        engines="as for a client that leaves",
        test=_COMMENTS + "shutdown_ends_a_stream_with_an_event[{text}-1.0]",
    )
    yield Row(
        "shutdown-http-1.0",
        Phase.ANSWER,
        "the gateway shuts down, and its time is over; the client speaks HTTP/1.0",
        Client.CUT,
        {Outcome.CLIENT_LEFT: 1},
        orders=PULL,
        streams=STREAM,
        engines="as for a client that leaves",
        test=_COMMENTS + "shutdown_cuts_a_stream_over_http_1_0",
    )
    yield Row(
        "comment-queue",
        Phase.QUEUE,
        "it waits too long for its turn, with comments on",
        Client.UNAVAILABLE,
        {Outcome.SHED: 1},
        orders=PULL,
        streams=STREAM,
        engines=_NOTHING,
        counters="no comment is sent in the queue",
        test=_COMMENTS + "a_queued_request_gets_none",
    )


def _gives_up() -> Row:
    """A request that has waited for room gives it up."""
    return Row(
        "busy-queue",
        Phase.QUEUE,
        "every D becomes busy when the first of several waiting requests has got its room",
        Client.UNAVAILABLE,
        {Outcome.UNAVAILABLE: 1},
        orders=PULL,
        streams=WHOLE,
        engines="nothing; the next one gets its answer at once, too",
        test="unit/proxy/serving/test_attempts.py::test_a_request_that_gives_its_room_up_wakes_the_next",
    )


def rows() -> Iterator[Row]:
    """All of them."""
    yield from _busy()
    yield _gives_up()
    yield from _comments()
    yield Row(
        "model-gone",
        Phase.QUEUE,
        "`/v1/models`, while the engines with a model are gone",
        "a list without it, and 404 for it; 503 with `Retry-After` while no engine is ready",
        orders=PULL,
        streams=WHOLE,
        engines=_NOTHING,
        counters="not counted",
        test=_MODELS + "a_model_that_no_engine_can_serve_is_omitted",
    )
    yield Row(
        "head-too-large",
        Phase.QUEUE,
        "a line of the head is longer than 8,190 bytes, or there are more than 128 headers",
        "431",
        orders=PULL,
        streams=WHOLE,
        engines=_NOTHING,
        counters="not counted",
        test=_HTTP + "a_head_that_is_too_large_is_431[fast-headers]",
    )
    yield Row(
        "returns-within",
        Phase.QUEUE,
        "bytes that look like a request come within another one, on a connection that aiohttp reads",
        "one answer for one request",
        orders=PULL,
        streams=WHOLE,
        engines=_NOTHING,
        counters="not counted",
        test=_HTTP + "a_connection_does_not_return_within_a_request",
    )
    yield Row(
        "http-1.0",
        Phase.ANSWER,
        "a client of HTTP/1.0 with `Connection: keep-alive` reads on until the connection ends, unless it is kept",
        "the right answer, with `Connection: keep-alive`",
        {Outcome.SPLIT: 1},
        orders=PULL,
        streams=WHOLE,
        engines="one leg each",
        test=_HTTP + "http_1_0_keeps_a_connection_that_both_keep[True]",
    )
