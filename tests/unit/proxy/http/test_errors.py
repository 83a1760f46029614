"""Errors in vLLM's shape."""

import orjson

from pdx_proxy.http.errors import error_body


def test_error_body() -> None:
    assert orjson.loads(error_body(418, "m", "t", "p")) == {
        "error": {"message": "m", "type": "t", "param": "p", "code": 418}
    }
