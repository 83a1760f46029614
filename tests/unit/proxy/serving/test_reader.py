"""Headers that go to engines, and the deadline of a request."""

from types import SimpleNamespace
from typing import Any, cast

from pdx_api.settings.gateway import Keys
from pdx_proxy.admission.permit import Permit
from pdx_proxy.config.settings import Deadlines, Settings
from pdx_proxy.http.messages import request_head
from pdx_proxy.http.routes import Kind
from pdx_proxy.serving.reader import RequestReader, forwarded_headers
from pdx_proxy.telemetry.timeline import Timeline
from tests.unit.proxy.serving.test_relay import Client


def test_forwarded_headers() -> None:
    assert "authorization" in forwarded_headers(Keys())
    for keys in (Keys(clients="a"), Keys(engines="b")):
        assert forwarded_headers(keys) == ("traceparent", "tracestate")
    head = request_head("GET", "/v1/models", "e:1", (("a", "b"),), 0, "Authorization: Bearer key\r\n")
    assert head == b"GET /v1/models HTTP/1.1\r\nHost: e:1\r\nAuthorization: Bearer key\r\na: b\r\n\r\n"


async def test_the_whole_deadline_begins_when_the_body_is_complete() -> None:
    settings = Settings(deadlines=Deadlines(total_seconds=100.0))
    chooser = SimpleNamespace(prompt_reader=None, may_split=lambda *_: False)
    serving: Any = SimpleNamespace(chooser=chooser, engines=SimpleNamespace(settings=settings, clock=lambda: 0.0))
    reader, loop = RequestReader(serving), SimpleNamespace(time=lambda: 5000.0)
    reader._loop = loop  # type: ignore[assignment]
    client, permit = Client(), cast("Permit", None)
    client.headers = {"content-type": "application/json"}
    for kind in (Kind.WHOLE, Kind.READ):
        assert (await reader.read(client, kind, b"{}", Timeline(), permit, None)).deadline == 5100.0
