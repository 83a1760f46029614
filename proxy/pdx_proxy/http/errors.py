"""Errors that the gateway answers itself, in vLLM's shape and, where vLLM has the same error, in vLLM's text."""

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

BAD_REQUEST: Final = "Bad Request"
"""vLLM's error type for a 400."""
_MAX_DESCRIBED_BYTES: Final = 64 * 1024
"""The largest invalid body whose error names the position."""


class RefusedError(Exception):
    """The gateway refuses the request. `str()` is the message for the client."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.headers: Mapping[str, str] = {}
        """Further headers of the answer."""
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """vLLM's error object."""
        return error_body(self.status, self.message, self.kind, self.param)


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    """An error in vLLM's shape (vllm/entrypoints/serve/engine/protocol.py, ErrorResponse)."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


def unavailable_body(message: str) -> bytes:
    """The body of a 503."""
    return error_body(503, message, "ServiceUnavailableError")


def not_json_type() -> RefusedError:
    """The body has another content type."""
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return RefusedError(400, message, BAD_REQUEST)


def not_an_object(raw: bytes) -> RefusedError:
    """The body is empty, is not JSON, or is JSON but not an object. A large body is not decoded to describe it."""
    if not raw:
        return _invalid({"type": "missing", "loc": "body", "msg": "Field required", "input": "None"})
    if len(raw) > _MAX_DESCRIBED_BYTES:
        return malformed()
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return _not_json(raw, error)
    shown = f"<list of {len(body)} items>" if isinstance(body, list) else str(body)[:200]
    message = "Input should be a valid dictionary or object to extract fields from"
    return _invalid({"type": "model_attributes_type", "loc": "body", "msg": message, "input": shown})


def _not_json(raw: bytes, error: orjson.JSONDecodeError) -> RefusedError:
    """The body is not JSON. Position and message are those of Python's `json`, which vLLM reports."""
    position, message = error.pos, error.msg
    try:
        json.loads(raw)
    except json.JSONDecodeError as strict:
        position, message = strict.pos, strict.msg
    except (ValueError, RecursionError):
        pass
    detail = {
        "type": "json_invalid",
        "loc": f"body.{position}",
        "msg": "JSON decode error",
        "input": "<dict of 0 items>",
        "ctx": {"error": message},
    }
    return _invalid(detail, f"body.{position}")


def malformed() -> RefusedError:
    """A large body is not a JSON object."""
    return _invalid({"type": "json_invalid", "loc": "body", "msg": "The body is not a valid JSON object."})


def too_deep(levels: int) -> RefusedError:
    """The body is nested deeper than `levels`."""
    return _out_of_bounds(f"The body is nested deeper than {levels} levels.")


def too_many_brackets(limit: int) -> RefusedError:
    """The body contains more than `limit` arrays and objects."""
    return _out_of_bounds(f"The body contains more than {limit} arrays and objects.")


def too_many_members(limit: int) -> RefusedError:
    """The body, or its `vllm_xargs`, has more than `limit` members."""
    return _out_of_bounds(f"The body, or an object in it, has more than {limit} members.")


def too_long_gap(limit: int) -> RefusedError:
    """The body contains a number, the name of a member, or a run of spaces, longer than `limit` bytes."""
    return _out_of_bounds(f"The body contains a number, a name or a run of spaces longer than {limit} bytes.")


def body_too_slow() -> RefusedError:
    """The body did not arrive in time."""
    return RefusedError(408, "The request's body did not arrive in time.", "Request Timeout")


def body_too_large(limit: int) -> RefusedError:
    """The body is larger than `limit` bytes."""
    message = f"The request body is too large: at most {limit} bytes are taken."
    return RefusedError(413, message, "Request Entity Too Large")


def _out_of_bounds(message: str) -> RefusedError:
    return RefusedError(400, message, BAD_REQUEST, "body")


def _invalid(detail: dict[str, Any], param: str = "body") -> RefusedError:
    return RefusedError(400, f"1 validation error:\n  {detail}", BAD_REQUEST, param)
