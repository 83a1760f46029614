"""Reading of streamed answers, in pieces of any size."""

import json
from typing import Any

import pytest

from pdx_cli.bench.load.events import EventReader
from pdx_cli.bench.load.records import Record, read_timing


def event(**members: Any) -> bytes:
    return b"data: " + json.dumps(members).encode() + b"\n\n"


CHOICE = [{"index": 0, "text": "a"}]
STREAM = b"".join(
    [
        event(choices=CHOICE),
        b": keep-alive\n\n",
        event(choices=[{"index": 0, "text": ""}]),
        event(choices=CHOICE),
        event(choices=[], usage={"prompt_tokens": 12, "completion_tokens": 5}),
        b"data: [DONE]\n\n",
    ]
)


@pytest.mark.parametrize("size", [1, 7, 40, len(STREAM)])
def test_tokens_in_pieces(size: int) -> None:
    reader = EventReader()
    for at, begin in enumerate(range(0, len(STREAM), size)):
        reader.add(STREAM[begin : begin + size], float(at))
    assert len(reader.gaps) == 2
    assert (reader.prompt_tokens, reader.output_tokens, reader.tokens) == (12, 5, 5)
    assert reader.first <= reader.last
    assert not reader.error


def test_without_usage_each_event_is_a_token() -> None:
    reader = EventReader()
    reader.add(event(choices=CHOICE) + event(choices=CHOICE), 1.0)
    assert reader.tokens == 2
    assert reader.gaps == [0.0]


@pytest.mark.parametrize(
    ("data", "part"),
    [(event(error={"message": "lost"}), "lost"), (b"data: {oops\n\n", "no JSON"), (b"data: 3\n\n", "")],
)
def test_errors_in_the_stream(data: bytes, part: str) -> None:
    reader = EventReader()
    reader.add(data, 0.0)
    assert reader.error
    assert part in reader.error


def test_lines_may_end_with_carriage_returns() -> None:
    reader = EventReader()
    reader.add(event(choices=CHOICE).replace(b"\n", b"\r\n"), 1.0)
    assert reader.tokens == 1


def test_the_gateways_timing() -> None:
    assert read_timing("queue;dur=0.5, prefill;dur=12.0") == {"queue": 0.0005, "prefill": 0.012}
    assert read_timing("") == {}


def test_times_of_a_record() -> None:
    record = Record(0, due=1.0, sent=1.1, first=1.6, last=2.6, output_tokens=11)
    assert (record.ttft, record.tpot, record.latency, record.lateness) == pytest.approx((0.5, 0.1, 1.5, 0.1))
    assert Record(0, 1.0, 1.0, 2.0, 2.0, output_tokens=1).tpot == 0.0
    assert Record(0, 1.0, 1.0).ttft < 0
