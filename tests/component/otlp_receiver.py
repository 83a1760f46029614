"""An OTLP receiver over HTTP within the test."""

import asyncio
import base64
from typing import Any, Self

from aiohttp import web
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.otlp import ReceivedSpan, spans_of

_IDS = ("traceId", "spanId", "parentSpanId")


class OTLPReceiver:
    """Receives spans. `status`: what it answers; it keeps the spans only with 200."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.posts = 0
        self.status = 200
        self.released = asyncio.Event()
        """Unset: requests wait for an answer."""
        self.released.set()
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> Self:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/traces", self._receive)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        self.released.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.posts += 1
        await self.released.wait()
        if self.status == 200:
            message = ExportTraceServiceRequest()
            message.ParseFromString(body)
            document: Any = MessageToDict(message, use_integers_for_enums=True)
            self.spans += spans_of(_hexadecimal(document))
        return web.Response(status=self.status)


def _hexadecimal(value: Any) -> Any:
    """OTLP's JSON has IDs as hexadecimal digits; protobuf's own JSON has them in base64."""
    if isinstance(value, dict):
        return {
            key: base64.b64decode(entry).hex() if key in _IDS else _hexadecimal(entry) for key, entry in value.items()
        }
    return [_hexadecimal(entry) for entry in value] if isinstance(value, list) else value
