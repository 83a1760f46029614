"""Error events in streams of three APIs: OpenAI's completions and Responses, Anthropic's Messages. Pure."""

import re
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
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500
_LAST_STATUS: Final = 599
_WRAPPED: Final = re.compile(r"\d+ validation errors? for \w+\s")
_WRAPPED_CODE: Final = re.compile(r"'code': (\d{1,4})\b")
_NO_MESSAGE: Final = "The engine failed."


class ErrorEvent:
    """An error event: below 500 the request is at fault, else the engine has failed."""

    __slots__ = ("body", "status")

    def __init__(self, status: int, body: bytes = b"") -> None:
        self.status = status if status <= _LAST_STATUS else _SERVER_ERROR
        self.body = body
        """A failure of the engine as the body of an answer that is no stream."""


_CLIENTS: Final = ErrorEvent(400)


def error_of(name: bytes, data: bytes) -> ErrorEvent | None:
    """The error that an event with this name and data reports; None for any other event.

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
        if code < _SERVER_ERROR:
            return _CLIENTS if code >= _CLIENT_ERROR else None
        return ErrorEvent(code, _body({"error": error}))
    error_type = _text(error, "type")
    if kind != "error":
        return None
    if error_type in _CLIENTS_TYPES or _wraps_clients_error(_text(error, "message") or ""):
        return _CLIENTS
    status = 503 if error_type == "overloaded_error" else _SERVER_ERROR
    return ErrorEvent(status, _body({"type": "error", "error": error}))


def _wraps_clients_error(message: str) -> bool:
    """Whether vLLM's wrapper at `/v1/messages` has failed to read an error of the client.

    Its text is that of pydantic: it begins with a count, and quotes the end of each error that it could not read. What
    a client writes is in neither place, so a failure of the engine that quotes a prompt is none.
    """
    if _WRAPPED.match(message) is None:
        return False
    codes = [int(code) for code in _WRAPPED_CODE.findall(message)]
    return bool(codes) and all(_CLIENT_ERROR <= code < _SERVER_ERROR for code in codes)


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


def _of_response(error: dict[str, Any]) -> ErrorEvent | None:
    """The failure in an error of the Responses API, which has a code and a message."""
    code = error.get("code")
    if isinstance(code, int):
        if code < _SERVER_ERROR:
            return _CLIENTS if code >= _CLIENT_ERROR else None
    elif _text(error, "code") not in _ENGINES_CODES:
        return _CLIENTS
    status = min(code, _LAST_STATUS) if isinstance(code, int) else _SERVER_ERROR
    message = _text(error, "message") or _NO_MESSAGE
    return ErrorEvent(status, error_body(status, message, "InternalServerError"))
