"""Traces: which requests are exported, their spans, and what engines receive of the client's context."""

import asyncio

import pytest

from pdx_api.names import Order
from pdx_api.settings.gateway import Logs, Tracing
from pdx_proxy.config.settings import Limits
from pdx_proxy.telemetry import span_exporter
from pdx_sim import FaultKind
from pdx_sim.engine import SimEngine
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually
from tests.component.otlp_receiver import OTLPReceiver
from tests.otlp import ReceivedSpan

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
STREAM = Shape(stream=True)


def traced(receiver: OTLPReceiver, ratio: float = 0.0) -> Tracing:
    return Tracing(receiver.endpoint, ratio)


async def received(receiver: OTLPReceiver, *names: str) -> dict[str, ReceivedSpan]:
    """The spans by name, once these have come and no others."""
    await eventually(lambda: len(receiver.spans) >= len(names), what=f"{names}, not {receiver.spans}")
    assert sorted(span.name for span in receiver.spans) == sorted(names)
    return {span.name: span for span in receiver.spans}


def headers_of(engine: SimEngine) -> list[tuple[str, str]]:
    """The trace context of each leg of a client."""
    legs = [seen for seen in engine.seen if seen.body.get("model") == "sim"]
    return [(seen.headers.get("traceparent", ""), seen.headers.get("tracestate", "")) for seen in legs]


async def test_a_sampled_request_has_a_span_for_each_phase(
    order: Order, make_world: MakeWorld, receiver: OTLPReceiver
) -> None:
    world = await make_world(order, tracing=traced(receiver))
    usage = {"stream_options": {"include_usage": True}}
    assert (await world.complete(STREAM, {"traceparent": SAMPLED, "tracestate": "a=b"}, **usage)).done
    spans = await received(receiver, "text_completion sim", "prefill", "decode")
    root, prefill, decode = (spans[name] for name in ("text_completion sim", "prefill", "decode"))
    assert (root.kind, prefill.kind, decode.kind) == ("server", "client", "client")
    assert (root.trace_id, root.parent_id, root.state) == (TRACE, PARENT, "a=b")
    assert {prefill.parent_id, decode.parent_id} == {root.span_id}
    assert len({root.span_id, prefill.span_id, decode.span_id}) == 3
    assert {span.service for span in receiver.spans} == {"pdx-gateway"}
    assert headers_of(world.p) == [(f"00-{TRACE}-{prefill.span_id}-01", "a=b")]
    assert headers_of(world.d) == [(f"00-{TRACE}-{decode.span_id}-01", "a=b")]
    assert not any(span.error for span in receiver.spans)
    assert decode.links == (prefill.span_id,)
    check_times(root, prefill, decode, ordered=world.pull)


def check_times(root: ReceivedSpan, prefill: ReceivedSpan, decode: ReceivedSpan, *, ordered: bool) -> None:
    """Legs lie within their request; the first token within the decode leg, and behind the prefill.

    If P pushes (not `ordered`), its HTTP answer may come after the last token.
    """
    ((name, first),) = decode.events
    assert name == "first_token"
    for leg in (prefill, decode):
        assert root.began <= leg.began <= leg.ended
    assert decode.ended <= root.ended
    assert not ordered or prefill.ended <= root.ended
    assert decode.began <= first <= decode.ended
    assert prefill.began < first
    assert not ordered or prefill.ended <= decode.began


async def test_the_attributes_are_those_of_the_conventions(make_world: MakeWorld, receiver: OTLPReceiver) -> None:
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver))
    reply = await world.complete(Shape(chat=True), {"traceparent": SAMPLED})
    spans = await received(receiver, "chat sim", "prefill", "decode")
    root = spans["chat sim"].attributes
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "sim",
        "gen_ai.request.stream": False,
        "gen_ai.usage.input_tokens": reply.json["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": reply.json["usage"]["completion_tokens"],
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": 200,
        "pdx.outcome": "split",
        "pdx.attempts": 1,
    }
    assert root == expected
    leg, endpoint = spans["decode"].attributes, world.endpoint(world.d)
    assert (leg["server.address"], leg["server.port"]) == endpoint.address
    assert (leg["pdx.endpoint"], leg["pdx.attempt"], leg["gen_ai.request.model"]) == (endpoint.name, 1, "sim")
    assert world.d.seen[-1].headers["x-request-id"] == leg["pdx.request_id"]
    assert spans["decode"].events == (), "without a stream the first token is not seen"


async def test_a_streams_usage_is_that_of_its_last_event(make_world: MakeWorld, receiver: OTLPReceiver) -> None:
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver, 1.0))
    reply = await world.complete(STREAM, stream_options={"include_usage": True})
    spans = await received(receiver, "text_completion sim", "prefill", "decode")
    root, usage = spans["text_completion sim"].attributes, reply.chunks[-1]["usage"]
    assert root["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert root["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert root["gen_ai.response.time_to_first_chunk"] > 0


@pytest.mark.parametrize("parent", ["", UNSAMPLED, SAMPLED])
async def test_without_a_receiver_headers_are_forwarded_unchanged(make_world: MakeWorld, parent: str) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    await world.complete(headers={"traceparent": parent, "tracestate": "a=b"} if parent else {})
    assert headers_of(world.p) == headers_of(world.d) == [(parent, "a=b" if parent else "")]


async def test_an_unsampled_request_keeps_its_header_and_has_no_span(
    order: Order, make_world: MakeWorld, receiver: OTLPReceiver
) -> None:
    world = await make_world(order, tracing=traced(receiver, 1.0))
    await world.complete(headers={"traceparent": UNSAMPLED, "tracestate": "a=b"})
    assert headers_of(world.p) == headers_of(world.d) == [(UNSAMPLED, "a=b")]
    await world.complete(headers={"traceparent": SAMPLED})
    await received(receiver, "text_completion sim", "prefill", "decode")  # of the second request only
    assert {span.trace_id for span in receiver.spans} == {TRACE}


async def test_a_request_without_a_context_is_sampled_by_the_ratio(
    make_world: MakeWorld, receiver: OTLPReceiver
) -> None:
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver, 0.0))
    await world.complete()
    assert headers_of(world.d) == [("", "")]
    other = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver, 1.0))
    await other.complete()
    spans = await received(receiver, "text_completion sim", "prefill", "decode")
    root = spans["text_completion sim"]
    assert (root.parent_id, root.state) == ("", "")
    assert headers_of(other.d) == [(f"00-{root.trace_id}-{spans['decode'].span_id}-01", "")]


MALFORMED = [
    "",
    "garbage",
    f"00-{TRACE}-{PARENT}",
    f"00-{TRACE.upper()}-{PARENT}-01",
    f"00-{'0' * 32}-{PARENT}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"ff-{TRACE}-{PARENT}-01",
    f"00-{TRACE}-{PARENT}-01-more",
    f"00-{TRACE}-{PARENT}-1g",
    f"00-{TRACE}-{PARENT}-01 ",
]


@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_a_malformed_context_is_ignored(make_world: MakeWorld, receiver: OTLPReceiver, ratio: float) -> None:
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver, ratio))
    for parent in MALFORMED[1:-1]:  # aiohttp strips the blank of the last
        await world.complete(headers={"traceparent": parent, "tracestate": "a=b"})
    if not ratio:
        assert headers_of(world.d) == [(parent, "a=b") for parent in MALFORMED[1:-1]]
        assert receiver.spans == []
        return
    await eventually(lambda: len(receiver.spans) == 3 * len(MALFORMED[1:-1]))
    roots = [span for span in receiver.spans if span.kind == "server"]
    assert {(root.parent_id, root.state) for root in roots} == {("", "")}
    assert len({root.trace_id for root in roots} - {TRACE}) == len(roots)
    assert {state for _, state in headers_of(world.d)} == {""}


async def test_a_later_version_of_the_header_is_read(make_world: MakeWorld, receiver: OTLPReceiver) -> None:
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver))
    await world.complete(headers={"traceparent": f"cc-{TRACE}-{PARENT}-03-what-the-future-is-like"})
    spans = await received(receiver, "text_completion sim", "prefill", "decode")
    root = spans["text_completion sim"]
    assert (root.trace_id, root.parent_id) == (TRACE, PARENT)
    assert headers_of(world.p)[0][0].startswith(f"00-{TRACE}-")


@pytest.mark.parametrize("parent", ["", UNSAMPLED])
async def test_an_unsampled_request_that_fails_is_exported_nevertheless(
    make_world: MakeWorld, receiver: OTLPReceiver, parent: str
) -> None:
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver))
    world.fault(world.d, FaultKind.STATUS, status=500)
    world.fault(world.p, FaultKind.STATUS, status=500)
    for engine in (world.p, world.d):
        engine.faults.add(FaultKind.STATUS, status=500, count=20)
    reply = await world.complete(headers={"traceparent": parent} if parent else {})
    assert reply.status == 500
    await eventually(lambda: [span for span in receiver.spans if span.kind == "server"])
    root = next(span for span in receiver.spans if span.kind == "server")
    assert (root.error, root.attributes["error.type"], root.attributes["pdx.outcome"]) == (
        True,
        "unavailable",
        "unavailable",
    )
    assert root.attributes["http.response.status_code"] == 500
    assert (root.trace_id == TRACE, root.parent_id) == (bool(parent), PARENT if parent else "")
    attempts = root.attributes["pdx.attempts"]
    assert attempts >= 2
    await eventually(lambda: sum(span.kind == "client" for span in receiver.spans) >= attempts)
    legs = [span for span in receiver.spans if span.kind == "client"]
    assert len(legs) == attempts
    assert all(leg.error and leg.attributes["error.type"] == "status" for leg in legs)
    assert {found for engine in (world.p, world.d) for found in headers_of(engine)} == {(parent, "")}


async def test_an_unsampled_request_that_is_slow_is_exported_nevertheless(
    order: Order, make_world: MakeWorld, receiver: OTLPReceiver
) -> None:
    world = await make_world(order, tracing=traced(receiver), logs=Logs(slow_seconds=0.0))
    assert (await world.complete(STREAM, {"traceparent": UNSAMPLED})).done
    spans = await received(receiver, "text_completion", "prefill", "decode")
    root, prefill, decode = (spans[name] for name in ("text_completion", "prefill", "decode"))
    assert (root.trace_id, root.parent_id, root.error) == (TRACE, PARENT, False)
    check_times(root, prefill, decode, ordered=world.pull)
    assert headers_of(world.p) == headers_of(world.d) == [(UNSAMPLED, "")]


async def test_a_storm_of_failures_is_not_one_of_spans(
    make_world: MakeWorld, receiver: OTLPReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver), logs=Logs(slow_seconds=0.0))
    tracing = world.worker._tracing
    assert tracing is not None
    now = tracing.clock()
    monkeypatch.setattr(tracing, "clock", lambda: float(int(now)))
    monkeypatch.setattr(tracing, "_most", 2)
    for _ in range(5):
        assert (await world.complete()).status == 200
    await eventually(lambda: world.report["spans"]["exported"] == 2 * 3)
    assert world.report["spans"] == {"exported": 6, "dropped": 0, "failed": 0, "limited": 3}
    assert (await world.complete(headers={"traceparent": SAMPLED})).status == 200
    await eventually(lambda: world.report["spans"]["exported"] == 9, what="a sampled request is not limited")
    monkeypatch.setattr(tracing, "clock", lambda: now + 1.0)
    await world.complete()
    await eventually(lambda: world.report["spans"]["exported"] == 12, what="the next second has room")
    page = (await world.call("GET", f"{world.admin}/metrics")).raw.decode()
    assert 'pdx_trace_spans_total{result="limited"} 3.0' in page


async def test_each_leg_of_a_retry_has_its_own_span(make_world: MakeWorld, receiver: OTLPReceiver) -> None:
    world = await make_world(Order.PREFILL_FIRST, 2, 1, tracing=traced(receiver))
    for engine in world.prefill:
        world.fault(engine, FaultKind.DIE_BEFORE_HEAD, count=1)
    assert (await world.complete(STREAM, {"traceparent": SAMPLED})).status == 200
    await eventually(lambda: [span for span in receiver.spans if span.kind == "server"])
    legs = sorted((span for span in receiver.spans if span.kind == "client"), key=lambda span: span.began)
    assert [leg.attributes["pdx.attempt"] for leg in legs] == list(range(1, len(legs) + 1))
    assert [leg.error for leg in legs] == [True, True, False]
    sent = [parent for engine in world.engines for parent, _ in headers_of(engine)]
    assert sorted(sent) == sorted(f"00-{TRACE}-{leg.span_id}-01" for leg in legs)
    assert len(set(sent)) == len(sent) == 3
    assert [leg.events != () for leg in legs] == [False, False, True]


async def test_a_wait_in_the_queue_is_a_span(make_world: MakeWorld, receiver: OTLPReceiver) -> None:
    limits = Limits(max_in_flight_per_decode=1)
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver, 1.0), limits=limits)
    await asyncio.gather(world.complete(tokens=40), world.complete(tokens=40))
    await eventually(lambda: len(receiver.spans) == 7)
    (queue,) = (span for span in receiver.spans if span.name == "queue")
    root = next(span for span in receiver.spans if span.span_id == queue.parent_id)
    prefill = next(span for span in receiver.spans if (span.name, span.parent_id) == ("prefill", root.span_id))
    assert root.began <= queue.began < queue.ended <= prefill.began


async def test_a_request_that_is_shed_while_it_waits_has_its_queue(
    make_world: MakeWorld, receiver: OTLPReceiver
) -> None:
    limits = Limits(max_in_flight_per_decode=1, max_wait_seconds=0.1)
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver), limits=limits)
    world.fault(world.d, FaultKind.SLOW, factor=200.0)
    first = asyncio.create_task(world.complete(tokens=20))
    await eventually(lambda: world.report["inFlight"]["requests"])
    await asyncio.sleep(0)
    assert (await world.complete()).status == 503  # not sampled: it has no span
    assert (await world.complete(headers={"traceparent": SAMPLED})).status == 503
    spans = await received(receiver, "text_completion sim", "queue")
    root, queue = spans["text_completion sim"], spans["queue"]
    assert (root.attributes["pdx.outcome"], root.attributes["http.response.status_code"]) == ("shed", 503)
    assert (queue.ended - queue.began) / 1e9 >= 0.09
    await first


async def test_a_settlement_is_a_span_and_its_leg_belongs_to_it(make_world: MakeWorld, receiver: OTLPReceiver) -> None:
    world = await make_world(Order.PREFILL_FIRST, decode=2, tracing=traced(receiver))
    for _ in range(4):
        await world.complete()  # both take their turn, and have a handshake then
    for engine in world.decode:
        world.fault(engine, FaultKind.ERROR_EVENT, count=1)
    await world.complete(STREAM, {"traceparent": SAMPLED})
    await eventually(lambda: [span for span in receiver.spans if span.name == "settlement"])
    await eventually(lambda: not world.report["inFlight"]["settling"])
    root = next(span for span in receiver.spans if span.kind == "server")
    settlements = [span for span in receiver.spans if span.name == "settlement"]
    assert {span.parent_id for span in settlements} == {root.span_id}
    assert {span.attributes["pdx.settlement.result"] for span in settlements} == {"released"}
    parents = {seen.headers.get("traceparent") for engine in world.decode for seen in engine.seen}
    assert {f"00-{TRACE}-{span.span_id}-01" for span in settlements} <= parents


async def test_a_client_that_leaves_has_its_settlement(make_world: MakeWorld, receiver: OTLPReceiver) -> None:
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver))
    world.fault(world.p, FaultKind.LONG_PREFILL, seconds=30.0)
    reader, writer = await world.raw(STREAM.body(), head=f"traceparent: {SAMPLED}\r\n")
    await eventually(lambda: headers_of(world.p))
    writer.close()
    spans = await received(receiver, "text_completion sim", "prefill", "settlement")
    root = spans["text_completion sim"]
    assert (root.attributes["pdx.outcome"], root.error) == ("client_left", False)
    assert spans["settlement"].parent_id == root.span_id
    assert spans["settlement"].attributes["pdx.settlement.result"] == "prefill_stopped"
    assert reader is not None


async def test_a_lost_receiver_delays_no_request_and_is_counted(
    make_world: MakeWorld, receiver: OTLPReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver, 1.0))
    receiver.status = 400
    await world.complete()
    await eventually(lambda: world.report["spans"]["failed"] == 3)
    await eventually(lambda: "accepts no spans" in caplog.text)
    receiver.status = 200
    await world.complete()
    await eventually(lambda: world.report["spans"]["exported"] == 3)
    await eventually(lambda: "accepts spans again" in caplog.text)
    page = (await world.call("GET", f"{world.admin}/metrics")).raw.decode()
    assert 'pdx_trace_spans_total{result="failed"} 3.0' in page
    await receiver.stop()  # nothing listens: the thread waits between its tries, and the gateway does not
    replies = [await world.complete() for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 200]


async def test_spans_that_wait_too_long_are_dropped_and_counted(
    make_world: MakeWorld, receiver: OTLPReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_exporter, "QUEUE", 6)
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver, 1.0))
    receiver.released.clear()
    for _ in range(5):
        assert (await world.complete()).status == 200
    assert world.report["spans"] == {"exported": 0, "dropped": 9, "failed": 0, "limited": 0}
    receiver.released.set()
    await eventually(lambda: world.report["spans"] == {"exported": 6, "dropped": 9, "failed": 0, "limited": 0})
    await world.complete()
    await eventually(lambda: world.report["spans"]["exported"] == 9)


async def test_a_gateway_that_stops_exports_what_is_left(
    make_world: MakeWorld, receiver: OTLPReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_exporter, "DELAY_SECONDS", 600.0)
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver, 1.0))
    await world.complete()
    await world.check()
    assert receiver.spans == []
    await world.close()
    assert len(receiver.spans) == 3


async def test_a_gateway_that_stops_does_not_wait_for_a_receiver_that_hangs(
    make_world: MakeWorld, receiver: OTLPReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_exporter, "_STOP_SECONDS", 0.05)
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver, 1.0))
    receiver.released.clear()
    await world.complete()
    await eventually(lambda: receiver.posts)
    await world.check()
    await asyncio.wait_for(world.close(), 20.0)
    assert receiver.spans == []


async def test_workers_export_each_for_itself(make_world: MakeWorld, receiver: OTLPReceiver) -> None:
    world = await make_world(Order.PREFILL_FIRST, tracing=traced(receiver, 1.0), workers=2)
    await asyncio.gather(*(in_own_connection(world) for _ in range(12)))
    await eventually(lambda: sum(span.kind == "server" for span in receiver.spans) == 12, what="all requests")
    assert len({span.resource["service.instance.id"] for span in receiver.spans}) == 2


async def in_own_connection(world: World) -> None:
    """A request over a connection of its own, so that any worker may get it."""
    reader, writer = await world.raw(Shape().body(), head="Connection: close\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
