"""Headers that go to engines."""

from pdx_proxy.config.settings import Keys
from pdx_proxy.http.messages import request_head
from pdx_proxy.serving.reader import forwarded_headers


def test_forwarded_headers() -> None:
    assert "authorization" in forwarded_headers(Keys())
    for keys in (Keys(clients="a"), Keys(engines="b")):
        assert forwarded_headers(keys) == ("traceparent", "tracestate")
    head = request_head("GET", "/v1/models", "e:1", (("a", "b"),), 0, "Authorization: Bearer key\r\n")
    assert head == b"GET /v1/models HTTP/1.1\r\nHost: e:1\r\nAuthorization: Bearer key\r\na: b\r\n\r\n"
