"""W3C Trace Context: what is sampled, and what the gateway makes of a client's header."""

import random

import pytest

from pdx_proxy.telemetry.trace_context import Trace, TraceSampler

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def sampler(ratio: float) -> TraceSampler:
    return TraceSampler(ratio, random.Random(1).getrandbits)


def headers(parent: str, state: str = "a=1") -> dict[str, str]:
    return {"traceparent": parent, "tracestate": state}


@pytest.mark.parametrize("ratio", [0.0, 1.0])
@pytest.mark.parametrize(
    ("parent", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"00-{TRACE}-{SPAN}-ff", True),
        (f"01-{TRACE}-{SPAN}-01", True),
        (f"01-{TRACE}-{SPAN}-01-later", True),
        (f"01-{TRACE}-{SPAN}-00-later", False),
    ],
)
def test_a_valid_header_decides_whatever_the_ratio(ratio: float, parent: str, sampled: bool) -> None:
    trace = sampler(ratio).sample(headers(parent))
    assert (trace is not None) is sampled
    if trace is not None:
        assert (trace.trace_id, trace.parent_id, trace.state, trace.sampled) == (TRACE, SPAN, "a=1", True)
        assert trace.span_id not in {SPAN, "0" * 16}


MALFORMED = [
    "x",
    f"00-{TRACE}-{SPAN}-1",
    f"00-{TRACE}-{SPAN}-001",
    f"00-{TRACE}-{SPAN}-01-",
    f"0-{TRACE}-{SPAN}-01",
    f"ff-{TRACE}-{SPAN}-01",
    f"01-{TRACE}-{SPAN}-01later",
    f"00-{TRACE.upper()}-{SPAN}-01",
    f"00-{TRACE[:-1]}g-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00_{TRACE}_{SPAN}_01",
    f"00-{TRACE}-{SPAN}-0\u0661",
    f" 00-{TRACE}-{SPAN}-01",
]


@pytest.mark.parametrize("parent", MALFORMED)
def test_a_malformed_header_is_as_none(parent: str) -> None:
    assert sampler(0.0).sample(headers(parent)) is None
    trace = sampler(1.0).sample(headers(parent))
    assert trace is not None
    assert (trace.parent_id, trace.state) == ("", "")
    assert trace.trace_id != TRACE
    late = sampler(0.0).late(headers(parent))
    assert (late.parent_id, late.state, late.sampled) == ("", "", False)


def test_a_state_that_cannot_be_sent_on_is_dropped() -> None:
    for trace in (sampler(0.0).sample(headers(f"00-{TRACE}-{SPAN}-01", "a=\xe4")), sampler(0.0).late({})):
        assert trace is not None
        assert trace.state == ""


def test_the_ratio_counts_the_low_half_of_the_id() -> None:
    """As OpenTelemetry's TraceIdRatioBased, so that a service behind the gateway would decide alike."""
    found = [trace for _ in range(4000) if (trace := SAMPLER.sample({})) is not None]
    assert 0.08 < len(found) / 4000 < 0.12
    assert all(int(trace.trace_id[16:], 16) < 2**64 * 0.1 for trace in found)
    assert len({trace.trace_id[:16] for trace in found}) == len(found)


SAMPLER = sampler(0.1)


def test_a_late_trace_keeps_the_clients() -> None:
    late = sampler(0.0).late(headers(f"00-{TRACE}-{SPAN}-00"))
    assert (late.trace_id, late.parent_id, late.state, late.sampled) == (TRACE, SPAN, "a=1", False)


def test_ids_are_never_zero() -> None:
    assert TraceSampler(0.0, lambda _: 0).new_span() == "0000000000000001"


def test_the_headers_of_a_leg() -> None:
    assert Trace(TRACE, SPAN, state="a=1").headers("00f067aa0ba902b7") == (
        ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01"),
        ("tracestate", "a=1"),
    )
    assert len(Trace(TRACE, SPAN).headers(SPAN)) == 1
