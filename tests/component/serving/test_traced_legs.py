"""What the spans of legs show of the client's context, the model and the attempts."""

import pytest

from pdx_api.names import Order
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, eventually
from tests.component.otlp_receiver import OTLPReceiver
from tests.component.serving.test_traces import SAMPLED, STREAM, headers_of, received, traced


@pytest.mark.parametrize("size", [20_000, 300_000])
async def test_the_model_of_a_large_body_is_recorded(size: int, make_world: MakeWorld, receiver: OTLPReceiver) -> None:
    world = await make_world(
        Order.PREFILL_FIRST, tracing=traced(receiver), sim={"max_model_len": 1_000_000, "num_blocks": 100_000}
    )
    assert (await world.complete(headers={"traceparent": SAMPLED}, prompt="a b " * (size // 4))).status == 200
    await received(receiver, "text_completion sim", "prefill", "decode")


@pytest.mark.parametrize("ratio", [None, 0.0])
async def test_several_lines_of_the_state_are_one(
    ratio: float | None, make_world: MakeWorld, receiver: OTLPReceiver
) -> None:
    """W3C Trace Context, 3.3.1; also where the gateway has no traces of its own."""
    more = {} if ratio is None else {"tracing": traced(receiver, ratio)}
    world = await make_world(Order.PREFILL_FIRST, **more)
    head = f"traceparent: {SAMPLED}\r\ntracestate: a=1,b=2\r\nTracestate: c=3\r\nConnection: close\r\n"
    reader, writer = await world.raw(Shape().body(), head=head)
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()
    assert [state for engine in (world.p, world.d) for _, state in headers_of(engine)] == ["a=1,b=2,c=3"] * 2


async def test_a_refused_leg_ends_its_attempt(make_world: MakeWorld, receiver: OTLPReceiver) -> None:
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver))
    world.fault(world.d, FaultKind.STATUS, status=400)
    assert (await world.complete(STREAM, {"traceparent": SAMPLED})).status == 200
    await eventually(lambda: [span for span in receiver.spans if span.kind == "server"])
    legs = sorted((span for span in receiver.spans if span.kind == "client"), key=lambda span: span.began)
    assert [(leg.name, leg.attributes["pdx.attempt"]) for leg in legs] == [("prefill", 1), ("decode", 1), ("decode", 2)]
    root = next(span for span in receiver.spans if span.kind == "server")
    assert root.attributes["pdx.attempts"] == 2
