"""Traces of real engines in a real OpenTelemetry Collector: vLLM's own spans lie below the gateway's legs."""

import re
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from pdx_api.names import Order, Role
from pdx_api.spec.types import Observability, Tracing
from tests.collector import Collector, collector
from tests.engines.support.harness import (
    Engine,
    Gateway,
    complete,
    eventually,
    gateway,
    make_prompt,
    running,
    tiny_spec,
)
from tests.otlp import ReceivedSpan, tree

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CLIENT = "00f067aa0ba902b7"
DOCS = Path(__file__).parents[2] / "docs" / "observability" / "traces.md"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with collector(tmp_path_factory.mktemp("collector")) as running_collector:
        yield running_collector


@pytest.fixture(scope="module")
def front(traces: Collector, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    logs = tmp_path_factory.mktemp("traced")
    tracing = Tracing.model_validate({"endpoint": traces.endpoint, "ratio": 0.0})
    spec = tiny_spec(tiny_model, order="PrefillFirst", connector="NIXL")
    spec = spec.model_copy(update={"observability": Observability(tracing=tracing)})
    prefill, decode = Engine(spec, Role.PREFILL, logs), Engine(spec, Role.DECODE, logs)
    flags = (f"--tracing-endpoint={traces.endpoint}", "--tracing-ratio=0")
    with (
        running(prefill, decode),
        gateway(Order.PREFILL_FIRST, [prefill], [decode], logs, flags=flags) as running_gateway,
    ):
        yield running_gateway


def test_the_program_is_the_collector(traces: Collector) -> None:
    assert traces.spans == []


async def test_vllms_spans_lie_below_their_legs(
    session: aiohttp.ClientSession, front: Gateway, traces: Collector
) -> None:
    """Warm-ups, and a request that is not sampled, leave no span: engines sample nothing by themselves."""
    unsampled = f"00-{TRACE[::-1]}-{CLIENT}-00"
    assert (await complete(session, front.url, _body(1), {"traceparent": unsampled})).status == 200
    assert (await complete(session, front.url, _body(2))).status == 200
    sampled = f"00-{TRACE}-{CLIENT}-01"
    answer = await complete(session, front.url, _body(3), {"traceparent": sampled})
    await eventually(lambda: len(traces.spans) >= 5, 30, "not all spans have come")
    spans = traces.spans
    assert {span.trace_id for span in spans} == {TRACE}
    named = {(span.service, span.name): span for span in spans}
    root, prefill, decode = (named["pdx-gateway", name] for name in ("text_completion tiny", "prefill", "decode"))
    assert root.parent_id == CLIENT
    assert _engine_span(named, "pdx-prefill").parent_id == prefill.span_id
    of_decode = _engine_span(named, "pdx-decode")
    assert of_decode.parent_id == decode.span_id
    assert of_decode.attributes["gen_ai.usage.completion_tokens"] == answer.usage["completion_tokens"]
    assert root.attributes["gen_ai.usage.output_tokens"] == answer.usage["completion_tokens"]
    assert str(of_decode.attributes["gen_ai.request.id"]).startswith(f"cmpl-{decode.attributes['pdx.request_id']}")
    drawn = tree(spans, CLIENT)
    assert _shape(drawn) == _shape(_documented()), f"docs/observability/traces.md shows another trace than:\n{drawn}"


def _body(seed: int) -> dict[str, object]:
    usage = {"stream_options": {"include_usage": True}}
    return {"prompt": make_prompt(9_000_000 + seed, 120), "max_tokens": 24, "stream": True, **usage}


def _engine_span(named: dict[tuple[str, str], ReceivedSpan], service: str) -> ReceivedSpan:
    return named[service, "llm_request"]


def _documented() -> str:
    found = re.search(r"^```text\n(client\n.*?)\n```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert found, "docs/observability/traces.md has no trace"
    return found[1]


def _shape(drawn: str) -> str:
    """The tree without its times."""
    return re.sub(r"[0-9.]+ (to [0-9.]+ )?ms", "", drawn)
