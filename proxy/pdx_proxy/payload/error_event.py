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
_NO_MESSAGE: Final = "The engine failed."


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
    Responses `{"type": "error", "code": …}` or `{"type": "response.failed", "response": {"error": …}}`. A member of
    another type than that counts as missing.
    """
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(event, dict):
        return None
    kind, error = _text(event, "type") or name.decode("latin-1"), event.get("error")
    if kind == "response.failed":
        response = event.get("response")
        error = response.get("error") if isinstance(response, dict) else None
        return _of_response(error if isinstance(error, dict) else {})
    if not isinstance(error, dict):
        return _of_response(event) if kind == "error" and error is None else None
    code = error.get("code")
    if isinstance(code, int):
        return EngineError(code, _body({"error": error})) if code >= _SERVER_ERROR else None
    error_type = _text(error, "type")
    if kind != "error" or error_type in _CLIENTS_TYPES:
        return None
    status = 503 if error_type == "overloaded_error" else _SERVER_ERROR
    return EngineError(status, _body({"type": "error", "error": error}))


def _text(members: dict[str, Any], name: str) -> str | None:
    """Return a member that is a text; None for any other type."""
    value = members.get(name)
    return value if isinstance(value, str) else None


def _body(members: dict[str, Any]) -> bytes:
    """Return an error as a body; a general one for members that orjson reads but does not write (nested too deep)."""
    try:
        return orjson.dumps(members)
    except orjson.JSONEncodeError:
        return error_body(_SERVER_ERROR, _NO_MESSAGE, "InternalServerError")


def _of_response(error: dict[str, Any]) -> EngineError | None:
    """The failure in an error of the Responses API, which has a code and a message."""
    code = error.get("code")
    if isinstance(code, int):
        if code < _SERVER_ERROR:
            return None
    elif _text(error, "code") not in _ENGINES_CODES:
        return None
    status = min(code, _LAST_STATUS) if isinstance(code, int) else _SERVER_ERROR
    message = _text(error, "message") or _NO_MESSAGE
    return EngineError(status, error_body(status, message, "InternalServerError"))
