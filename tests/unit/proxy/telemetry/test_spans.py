"""The spans of a request, from its timeline."""

from typing import Any

import pytest

from pdx_proxy.config.settings import Address
from pdx_proxy.telemetry.counters import Outcome
from pdx_proxy.telemetry.spans import EndedRequest, Span, SpanBuilder
from pdx_proxy.telemetry.timeline import LegRecord, SettlementRecord, Timeline
from pdx_proxy.telemetry.trace_context import Trace


def leg(name: str, sent: float, ended: float = 0.0, attempt: int = 1, *, prefill: bool = False) -> LegRecord:
    record = LegRecord(name, Address("10.0.0.1", 8000), f"id-{name}", attempt, sent)
    record.ended, record.prefill = ended, prefill
    return record


def build(
    timeline: Timeline, outcome: Outcome = Outcome.SPLIT, path: str = "/v1/completions", **trace: Any
) -> list[Span]:
    """The spans of a request from 10 to 20 s of the clock, which began at the Unix time 1000."""
    ids = iter(f"{number:016x}" for number in range(1, 99))
    found = Trace("1" * 32, "2" * 16)
    for name, value in trace.items():
        setattr(found, name, value)
    return SpanBuilder(1000.0, lambda: next(ids)).request(EndedRequest("POST", path, outcome, timeline, found, 10, 20))


def test_times_are_unix_times_in_nanoseconds() -> None:
    timeline = Timeline()
    timeline.read, timeline.queued, timeline.first, timeline.stream = 12.0, 1.5, 3.5, True
    timeline.legs = [leg("p", 12.0, 13.0, prefill=True), leg("d", 13.0)]
    _, queue, prefill, decode = build(timeline)
    assert (queue.began, queue.ended) == (1010_500_000_000, 1012_000_000_000)
    assert (prefill.began, prefill.ended) == (1012_000_000_000, 1013_000_000_000)
    assert (decode.began, decode.ended) == (1013_000_000_000, 1020_000_000_000)
    assert decode.events == (("first_token", 1014_000_000_000),), "3.5 s after it was read, the wait included"
    assert decode.links == (prefill.span_id,)


def test_the_end_of_an_attempt_ends_its_legs_only() -> None:
    timeline = Timeline()
    timeline.legs = [leg("p", 11.0, 11.5, prefill=True), leg("d", 11.5)]
    timeline.end_attempt("d", "lost", 12.0)
    timeline.legs += [leg("q", 12.0, 13.0, 2, prefill=True), leg("e", 13.0, attempt=2)]
    _, p, d, q, e = build(timeline)
    assert [span.error for span in (p, d, q, e)] == [False, True, False, False]
    assert d.attributes["error.type"] == "lost"
    assert (d.ended, e.ended) == (1012_000_000_000, 1020_000_000_000)
    assert (d.links, e.links) == ((p.span_id,), (q.span_id,))


@pytest.mark.parametrize(
    ("outcome", "error"),
    [(Outcome.SPLIT, False), (Outcome.REFUSED, False), (Outcome.CLIENT_LEFT, False), (Outcome.BROKEN, True)],
)
def test_what_the_client_causes_is_no_error(outcome: Outcome, error: bool) -> None:
    timeline = Timeline()
    timeline.legs = [leg("d", 11.0)]
    root, decode = build(timeline, outcome)
    assert (root.error, decode.error) == (error, error)
    assert ("error.type" in root.attributes) is error


@pytest.mark.parametrize(
    ("path", "model", "name"),
    [
        ("/v1/chat/completions", "m", "chat m"),
        ("/v1/messages", "m", "chat m"),
        ("/v1/responses", "", "chat"),
        ("/v1/embeddings", "m", "embeddings m"),
        ("/tokenize", "m", "POST /tokenize"),
    ],
)
def test_names(path: str, model: str, name: str) -> None:
    (root,) = build(Timeline(), path=path, model=model)
    assert root.name == name
    assert ("gen_ai.operation.name" in root.attributes) is (path != "/tokenize")


@pytest.mark.parametrize(
    ("tail", "tokens"),
    [
        (b'"choices":[],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}', (7, 2)),
        (b'{"usage": {"input_tokens": 3, "input_tokens_details": {"a": 1}, "output_tokens": 4}}', (3, 4)),
        (b'data: {"usage":{"prompt_tokens":1}}\n\ndata: {"usage":null}\n\n', (1, None)),
        (
            b'{"usage":{"prompt_tokens":1,"completion_tokens":1}} {"usage":{"prompt_tokens":5,"completion_tokens":6}}',
            (5, 6),
        ),
        (b'"usage":{"prompt_tokens":"x"}', (None, None)),
        (b'"usage":{prompt}', (None, None)),
        (b"data: [DONE]", (None, None)),
    ],
)
def test_usage_is_read_from_the_end_of_the_answer(tail: bytes, tokens: tuple[object, object]) -> None:
    (root,) = build(Timeline(), tail=tail)
    found = root.attributes
    assert (found.get("gen_ai.usage.input_tokens"), found.get("gen_ai.usage.output_tokens")) == tokens


def test_settlements_that_ended_before_the_request() -> None:
    timeline = Timeline()
    timeline.settlements = [SettlementRecord(12.0, 12.5, "released", "a" * 16)]
    root, settlement = build(timeline)
    assert (settlement.span_id, settlement.parent_id) == ("a" * 16, root.span_id)
    assert (settlement.began, settlement.attributes) == (1012_000_000_000, {"pdx.settlement.result": "released"})
