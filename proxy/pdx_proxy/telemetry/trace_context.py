"""W3C Trace Context: which requests are sampled, and the headers of their legs. Pure: random bits are an argument.

https://www.w3.org/TR/trace-context/ is the source of what a valid header is.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_HEADER: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 1
"""The bit of the flags."""
_LAST: Final = 54
"""The position of the flags' last digit, in every version."""
_ODD: Final = "13579bdf"
"""The last digits of flags whose lowest bit, `sampled`, is set."""
_IDS: Final = 1 << 64


class Trace:
    """The trace of one request: the position of the gateway's span in it."""

    __slots__ = ("model", "parent_id", "sampled", "span_id", "state", "tail", "trace_id")

    def __init__(self, trace_id: str, span_id: str, parent_id: str = "", state: str = "", sampled: bool = True) -> None:
        self.trace_id = trace_id
        """32 digits."""
        self.span_id = span_id
        """16 digits: the span of the request."""
        self.parent_id = parent_id
        """The client's span; empty without one."""
        self.state = state
        """The client's tracestate."""
        self.sampled = sampled
        """Whether its legs belong to it; otherwise they have the client's header."""
        self.model = ""
        """The model that the client requests; empty if it is not recorded."""
        self.tail = b""
        """The end of the answer, which may contain its usage."""

    def headers(self, span_id: str) -> tuple[tuple[str, str], ...]:
        """The headers of a leg with this span."""
        parent = (TRACEPARENT, "00-" + self.trace_id + "-" + span_id + "-01")
        return ((parent, (TRACESTATE, self.state))) if self.state else (parent,)


class TraceSampler:
    """Decides at a request's head whether it is sampled."""

    __slots__ = ("_bits", "_bound")

    def __init__(self, ratio: float, bits: Callable[[int], int]) -> None:
        self._bits = bits
        """Returns that many random bits."""
        self._bound = round(ratio * _IDS)
        """A trace is sampled if the low half of its ID is less, as in OpenTelemetry's TraceIdRatioBased."""

    def sample(self, headers: Mapping[str, str]) -> Trace | None:
        """The trace of a request with these headers; None if it is not sampled.

        A valid traceparent decides. Most requests are not sampled, so the header is parsed only if that matters.
        """
        low = self._bits(64)
        chosen = low < self._bound
        parent = headers.get(TRACEPARENT, "")
        if not chosen and (len(parent) <= _LAST or parent[_LAST] not in _ODD):
            return None
        found = _parse(parent)
        if found is None:
            return Trace(f"{self._bits(64):016x}{low:016x}", self.new_span()) if chosen else None
        trace_id, span_id, flags = found
        if not flags & _SAMPLED:
            return None
        return Trace(trace_id, self.new_span(), span_id, _state(headers))

    def late(self, headers: Mapping[str, str]) -> Trace:
        """The trace of a request that was not sampled and is exported nevertheless."""
        found = _parse(headers.get(TRACEPARENT, ""))
        if found is None:
            return Trace(f"{self._bits(128):032x}", self.new_span(), sampled=False)
        return Trace(found[0], self.new_span(), found[1], _state(headers), False)

    def new_span(self) -> str:
        """The ID of a new span: 16 digits, not all of them 0."""
        return f"{self._bits(64) or 1:016x}"


def _state(headers: Mapping[str, str]) -> str:
    """The client's tracestate, if it can be sent on."""
    state = headers.get(TRACESTATE, "")
    return state if state.isascii() else ""


def _parse(text: str) -> tuple[str, str, int] | None:
    """Trace ID, span ID and flags of a traceparent; None if it is malformed."""
    match = _HEADER.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest is not None):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return trace_id, span_id, int(flags, 16)
