"""Error events in streams of three APIs: OpenAI's completions and Responses, Anthropic's Messages. Pure."""

from typing import Any, Final

import orjson

from pdx_proxy.http.errors import error_body

_CLIENTS_TYPES: Final = frozenset(
    (
        "invalid_request_error",
        "authentication_error",
        "billing_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
    )
)
"""Types of Anthropic's errors that are the client's. vLLM itself sends `internal_error` for whatever ends a stream."""
_ENGINES_CODES: Final = frozenset((None, "server_error", "vector_store_timeout"))
"""Codes of a response's error that are the engine's (openai/types/responses/response_error.py)."""
_SERVER_ERROR: Final = 500
_LAST_STATUS: Final = 599


class EngineError:
    """An error event that reports a failure of the engine."""

    __slots__ = ("body", "status")

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status if status <= _LAST_STATUS else _SERVER_ERROR
        self.body = body
        """The error as the body of an answer that is no stream."""


def error_of(name: bytes, data: bytes) -> EngineError | None:
    """The failure that an event with this name and data reports; None for any other event, also an error of the client.

    Completions have `{"error": {"code": 500, …}}` without a name, Messages `{"type": "error", "error": {"type": …}}`,
    Responses `{"type": "error", "code": …}` or `{"type": "response.failed", "response": {"error": …}}`.
    """
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(event, dict):
        return None
    kind, error = event.get("type", name.decode("latin-1")), event.get("error")
    if kind == "response.failed":
        response = event.get("response")
        error = response.get("error") if isinstance(response, dict) else None
        return _of_response(error if isinstance(error, dict) else {})
    if not isinstance(error, dict):
        return _of_response(event) if kind == "error" and error is None else None
    code = error.get("code")
    if isinstance(code, int):
        return EngineError(code, orjson.dumps({"error": error})) if code >= _SERVER_ERROR else None
    if kind != "error" or error.get("type") in _CLIENTS_TYPES:
        return None
    status = 503 if error.get("type") == "overloaded_error" else _SERVER_ERROR
    return EngineError(status, orjson.dumps({"type": "error", "error": error}))


def _of_response(error: dict[str, Any]) -> EngineError | None:
    """The failure in an error of the Responses API, which has a code and a message."""
    code = error.get("code")
    if isinstance(code, int):
        if code < _SERVER_ERROR:
            return None
    elif code not in _ENGINES_CODES:
        return None
    status = code if isinstance(code, int) else _SERVER_ERROR
    message = str(error.get("message") or "The engine failed.")
    return EngineError(status, error_body(status, message, "InternalServerError"))
