"""Errors in the shape of the path's API."""

import orjson
import pytest

from pdx_proxy.http.errors import (
    RefusedError,
    body_too_large,
    error_body,
    malformed,
    not_an_object,
    not_json_type,
    too_deep,
    unavailable_body,
)

MESSAGES = ["/v1/messages", "/v1/messages/count_tokens"]


@pytest.mark.parametrize("path", ["", "/v1/completions", "/v1/responses"])
def test_error_body(path: str) -> None:
    assert orjson.loads(error_body(418, "m", "t", "p", path)) == {
        "error": {"message": "m", "type": "t", "param": "p", "code": 418}
    }


@pytest.mark.parametrize("path", MESSAGES)
@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (too_deep(9), "invalid_request_error"),
        (body_too_large(9), "request_too_large"),
        (RefusedError(429, "m", "RateLimitError"), "rate_limit_error"),
        (RefusedError(503, "m", "ServiceUnavailableError"), "overloaded_error"),
    ],
)
def test_what_the_gateway_alone_refuses_has_anthropics_shape(path: str, refusal: RefusedError, kind: str) -> None:
    expected = {"type": "error", "error": {"type": kind, "message": refusal.message}}
    assert orjson.loads(refusal.body(path)) == expected
    assert orjson.loads(refusal.body())["error"]["code"] == refusal.status
    assert orjson.loads(unavailable_body("m", path))["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize("refusal", [not_json_type(), not_an_object(b"{"), not_an_object(b"[]"), malformed()])
def test_what_vllms_server_refuses_has_one_shape(refusal: RefusedError) -> None:
    assert refusal.body(MESSAGES[0]) == refusal.body()
