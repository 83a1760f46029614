"""Exports spans with OpenTelemetry's SDK: in batches, from a thread of its own, to an OTLP receiver over HTTP.

Imported only by workers that export: the SDK takes 20 MB and a third of a second.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags, TraceState
from opentelemetry.trace import SpanKind as OtelKind

from pdx_api.otlp import GATEWAY_SERVICE, traces_url
from pdx_api.version import pdx_version
from pdx_proxy.telemetry.spans import Span, SpanKind

QUEUE: Final = 8192
"""Spans that wait for the thread; further ones are dropped. About 20 MB."""
_BATCH: Final = 512
DELAY_SECONDS: Final = 1.0
"""How long spans wait for a batch to fill."""
_STOP_SECONDS: Final = 3.0
_KINDS: Final = {
    SpanKind.SERVER: OtelKind.SERVER,
    SpanKind.CLIENT: OtelKind.CLIENT,
    SpanKind.INTERNAL: OtelKind.INTERNAL,
}
_SCOPE: Final = InstrumentationScope("pdx_proxy", pdx_version())
_FLAGS: Final = TraceFlags(TraceFlags.SAMPLED)
_OK: Final = Status(StatusCode.UNSET)
_ERROR: Final = Status(StatusCode.ERROR)

_log: Final = logging.getLogger(__name__)


class CountingExporter(SpanExporter):
    """An exporter that counts what became of spans, and logs when the receiver is lost and when it is back.

    Only the processor's thread calls `export`, so it alone writes the counts.
    """

    def __init__(self, inner: SpanExporter, endpoint: str) -> None:
        self._inner = inner
        self._endpoint = endpoint
        self._closed = False
        self.exported = 0
        self.failed = 0
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = SpanExportResult.FAILURE if self._closed else self._inner.export(spans)
        except Exception:  # an error of the SDK must not end its thread
            result = SpanExportResult.FAILURE
        accepted = result is SpanExportResult.SUCCESS
        if accepted:
            self.exported += len(spans)
        else:
            self.failed += len(spans)
        if accepted is self._failing and not self._closed:
            self._failing = not accepted
            state = "accepts spans again" if accepted else "accepts no spans; requests go on without traces"
            _log.warning("%s %s", self._endpoint, state)
        return result

    def shutdown(self) -> None:
        """Abandon what is left, and end the wait before another try."""
        if not self._closed:
            self._closed = True
            self._inner.shutdown()


class OTLPSink:
    """The spans of one worker on their way to the receiver."""

    def __init__(self, endpoint: str) -> None:
        url = traces_url(endpoint)
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # one line for each try; see CountingExporter
        self._exporter = CountingExporter(OTLPSpanExporter(endpoint=url), url)
        self._processor = BatchSpanProcessor(self._exporter, QUEUE, DELAY_SECONDS * 1000, min(_BATCH, QUEUE))
        self._resource = Resource({"service.version": pdx_version()}).merge(
            Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", GATEWAY_SERVICE)})
        )
        self._taken = 0
        self._dropped = 0

    def export(self, spans: list[Span]) -> None:
        """Hand spans to the thread. They are dropped, all of a request, if too many wait already."""
        waiting = self._taken - self._exporter.exported - self._exporter.failed
        if waiting + len(spans) > QUEUE:
            self._dropped += len(spans)
            return
        self._taken += len(spans)
        for span in spans:
            self._processor.on_end(self._readable(span))

    def report(self) -> dict[str, int]:
        """Return the number of spans by what became of them."""
        exporter = self._exporter
        return {"exported": exporter.exported, "dropped": self._dropped, "failed": exporter.failed}

    async def stop(self) -> None:
        """Export what is left. The receiver gets some seconds; then the rest is abandoned."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]
            with contextlib.suppress(RuntimeError):  # the loop has not waited for it and is closed
                loop.call_soon_threadsafe(ended.set)

        # A daemon: neither this worker nor the interpreter waits for a receiver that does not answer.
        threading.Thread(target=end, daemon=True).start()
        try:
            await asyncio.wait_for(ended.wait(), _STOP_SECONDS)
        except TimeoutError:
            self._exporter.shutdown()

    def _readable(self, span: Span) -> ReadableSpan:
        trace_id, state = int(span.trace.trace_id, 16), TraceState()
        if span.trace.state:
            state = TraceState.from_header([span.trace.state])

        def context(span_id: str, *, remote: bool = False) -> SpanContext:
            return SpanContext(trace_id, int(span_id, 16), remote, _FLAGS, state)

        from_client = span.kind is SpanKind.SERVER
        return ReadableSpan(
            span.name,
            context=context(span.span_id),
            parent=context(span.parent_id, remote=from_client) if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(name, timestamp=time) for name, time in span.events],
            links=[Link(context(span_id)) for span_id in span.links],
            kind=_KINDS[span.kind],
            status=_ERROR if span.error else _OK,
            start_time=span.began,
            end_time=span.ended,
            instrumentation_scope=_SCOPE,
        )
