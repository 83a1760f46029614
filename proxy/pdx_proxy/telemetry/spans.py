"""The spans of a request that has ended, made from its timeline. Pure.

Names and attributes are those of OpenTelemetry's semantic conventions for HTTP and for generative AI
(open-telemetry/semantic-conventions-genai), as far as these have them. PDX's own attributes begin with `pdx.`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec

from pdx_proxy.telemetry.counters import FAILED, Outcome
from pdx_proxy.telemetry.timeline import NEVER, LegRecord, SettlementRecord, Timeline
from pdx_proxy.telemetry.trace_context import Trace

Attribute = str | int | float | bool
_CHAT: Final = "chat"
_OPERATIONS: Final = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": _CHAT,
    "/v1/chat/completions/batch": _CHAT,
    "/v1/responses": _CHAT,
    "/v1/messages": _CHAT,
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
}
"""The values of gen_ai.operation.name."""
_PROVIDER: Final = "vllm"
_FIRST_TOKEN: Final = "first_token"  # noqa: S105 (not a secret)
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
"""The usage in an answer: an object with objects of one level."""
_MOST_TOKENS: Final = 10**12
"""A larger count is none. One above 64 bits would end the export of other requests' spans, too."""
_TOKENS: Final = {
    "input_tokens": ("prompt_tokens", "input_tokens"),
    "output_tokens": ("completion_tokens", "output_tokens"),
}
"""Attributes below gen_ai.usage, and the members of vLLM's APIs that hold them."""


class SpanKind(Enum):
    """The kinds of spans that the gateway exports."""

    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times are nanoseconds of Unix time."""

    name: str
    kind: SpanKind
    trace: Trace
    span_id: str
    parent_id: str
    began: int
    ended: int
    attributes: Mapping[str, Attribute]
    error: bool = False
    events: tuple[tuple[str, int], ...] = ()
    links: tuple[str, ...] = ()
    """IDs of spans of the same trace."""


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request at its end. Times are seconds of the gateway's clock."""

    method: str
    path: str
    outcome: Outcome
    timeline: Timeline
    trace: Trace
    began: float
    ended: float
    first: int = field(default=0)
    """The first of its legs that is to be exported."""


class SpanBuilder:
    """Makes spans of ended requests. `offset` is Unix time minus the gateway's clock, in seconds."""

    __slots__ = ("_new_span", "_offset")

    def __init__(self, offset: float, new_span: Callable[[], str]) -> None:
        self._offset = offset
        self._new_span = new_span

    def request(self, ended: EndedRequest) -> list[Span]:
        """All spans of a request that has ended, without settlements that have not."""
        timeline, trace = ended.timeline, ended.trace
        operation = _OPERATIONS.get(ended.path, "")
        what = operation or ended.method
        name = f"{what} {trace.model}" if operation and trace.model else what if operation else f"{what} {ended.path}"
        error = ended.outcome in FAILED
        root = Span(
            name,
            SpanKind.SERVER,
            trace,
            trace.span_id,
            trace.parent_id,
            self._unix(ended.began),
            self._unix(ended.ended),
            _request_attributes(ended, operation),
            error,
        )
        return [root, *self._queue(ended), *self.legs(ended), *self.settlements(ended, timeline.settlements or ())]

    def legs(self, ended: EndedRequest) -> list[Span]:
        """The spans of legs."""
        timeline = ended.timeline
        legs = timeline.legs[ended.first :]
        answered = next((leg for leg in reversed(legs) if not leg.prefill and not leg.failure), None)
        ids = [leg.span_id or self._new_span() for leg in legs]
        prefills = {leg.attempt: span_id for leg, span_id in zip(legs, ids, strict=True) if leg.prefill}
        return [
            self._leg(ended, leg, span_id, prefills, answered is leg) for leg, span_id in zip(legs, ids, strict=True)
        ]

    def settlements(self, ended: EndedRequest, records: Iterable[SettlementRecord]) -> list[Span]:
        """The spans of settlements."""
        return [
            Span(
                "settlement",
                SpanKind.INTERNAL,
                ended.trace,
                record.span_id or self._new_span(),
                ended.trace.span_id,
                self._unix(record.began),
                self._unix(record.ended),
                {"pdx.settlement.result": record.result},
            )
            for record in records
        ]

    def _queue(self, ended: EndedRequest) -> list[Span]:
        """The wait in the queue, if there was one. A request that is shed while it waits has no other phase."""
        timeline = ended.timeline
        waited_until = timeline.read
        if timeline.read and not timeline.legs and ended.outcome is Outcome.SHED:
            waited_until = ended.ended
        elif not timeline.queued:
            return []
        began, until = self._unix(timeline.read - timeline.queued), self._unix(waited_until)
        trace = ended.trace
        return [Span("queue", SpanKind.INTERNAL, trace, self._new_span(), trace.span_id, began, until, {})]

    def _leg(
        self, ended: EndedRequest, leg: LegRecord, span_id: str, prefills: Mapping[int, str], answered: bool
    ) -> Span:
        timeline, trace = ended.timeline, ended.trace
        first = timeline.read - timeline.queued + timeline.first
        has_first = answered and timeline.stream and timeline.first != NEVER
        until = leg.ended or ended.ended
        return Span(
            "prefill" if leg.prefill else "decode",
            SpanKind.CLIENT,
            trace,
            span_id,
            trace.span_id,
            self._unix(leg.sent),
            self._unix(max(until, leg.sent)),
            _leg_attributes(ended, leg),
            bool(leg.failure) or (answered and ended.outcome in (Outcome.BROKEN, Outcome.IDLE)),
            ((_FIRST_TOKEN, self._unix(first)),) if has_first else (),
            (prefills[leg.attempt],) if not leg.prefill and leg.attempt in prefills else (),
        )

    def _unix(self, time: float) -> int:
        return int((time + self._offset) * 1e9)


def _request_attributes(ended: EndedRequest, operation: str) -> dict[str, Attribute]:
    timeline, trace = ended.timeline, ended.trace
    found: dict[str, Attribute] = {
        "http.request.method": ended.method,
        "http.route": ended.path,
        "url.path": ended.path,
        "pdx.outcome": ended.outcome.value,
        "pdx.attempts": max((leg.attempt for leg in timeline.legs), default=0),
        **_gen_ai(operation, trace),
    }
    if timeline.status:
        found["http.response.status_code"] = timeline.status
    if operation:
        found["gen_ai.request.stream"] = timeline.stream
        if timeline.stream and timeline.first != NEVER:
            found["gen_ai.response.time_to_first_chunk"] = round(timeline.first, 6)
    if ended.outcome in FAILED:
        found["error.type"] = ended.outcome.value
    return found | _usage_attributes(trace.tail)


def _leg_attributes(ended: EndedRequest, leg: LegRecord) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {
        "http.request.method": ended.method,
        "server.address": leg.address.host,
        "server.port": leg.address.port,
        "pdx.endpoint": leg.endpoint,
        "pdx.attempt": leg.attempt,
        "pdx.request_id": leg.request_id,
        **_gen_ai(_OPERATIONS.get(ended.path, ""), ended.trace),
    }
    if leg.failure:
        found["error.type"] = leg.failure
    return found


def _gen_ai(operation: str, trace: Trace) -> dict[str, Attribute]:
    if not operation:
        return {}
    model = {"gen_ai.request.model": trace.model} if trace.model else {}
    return {"gen_ai.operation.name": operation, "gen_ai.provider.name": _PROVIDER, **model}


def _usage_attributes(tail: bytes) -> dict[str, Attribute]:
    """The tokens that the end of an answer reports; none if it reports none, as a stream without `include_usage`."""
    found = _USAGE.findall(tail)
    try:
        usage = msgspec.json.decode(found[-1]) if found else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        usage = {}
    counts: dict[str, Attribute] = {}
    for name, members in _TOKENS.items():
        count = next((usage[member] for member in members if type(usage.get(member)) is int), None)
        if count is not None and 0 <= count <= _MOST_TOKENS:
            counts[f"gen_ai.usage.{name}"] = count
    return counts
