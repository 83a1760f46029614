"""Errors that the gateway answers itself, in vLLM's shape and, where vLLM has the same error, in vLLM's text.

At Anthropic's paths, errors that the gateway alone answers have Anthropic's shape, as vLLM's own have there. vLLM's
server answers a body that is no valid JSON, and a key that is missing, in one shape at all paths.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

BAD_REQUEST: Final = "Bad Request"
"""vLLM's error type for a 400."""
_MAX_DESCRIBED_BYTES: Final = 64 * 1024
"""The largest invalid body whose error names the position."""
_ANTHROPIC_PATHS: Final = frozenset(("/v1/messages", "/v1/messages/count_tokens"))
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""The types of Anthropic's error objects (anthropic/types/shared/error_type.py)."""


class RefusedError(Exception):
    """The gateway refuses the request. `str()` is the message for the client."""

    def __init__(
        self, status: int, message: str, kind: str, param: str | None = None, *, one_shape: bool = False
    ) -> None:
        super().__init__(message)
        self.one_shape = one_shape
        """Whether the error has vLLM's shape at all paths, because vLLM's HTTP server answers it, and no API."""
        self.headers: Mapping[str, str] = {}
        """Further headers of the answer."""
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self, path: str = "") -> bytes:
        """The error object of the API at the path."""
        return error_body(self.status, self.message, self.kind, self.param, "" if self.one_shape else path)


def error_body(status: int, message: str, kind: str, param: str | None = None, path: str = "") -> bytes:
    """An error in vLLM's shape (vllm/entrypoints/serve/engine/protocol.py, ErrorResponse), or in that of the path."""
    if path in _ANTHROPIC_PATHS:
        return orjson.dumps({"type": "error", "error": {"type": anthropic_type(status), "message": message}})
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


def anthropic_type(status: int) -> str:
    """The type of an Anthropic error with this status."""
    return _ANTHROPIC_TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")


def unavailable_body(message: str, path: str = "") -> bytes:
    """The body of a 503."""
    return error_body(503, message, "ServiceUnavailableError", path=path)


def not_json_type() -> RefusedError:
    """The body has another content type."""
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return RefusedError(400, message, BAD_REQUEST, one_shape=True)


def null_member(name: str) -> RefusedError:
    """A member is null, and must have a value where it is given."""
    return RefusedError(400, f"{name} must not be null; leave it out, or write a value.", BAD_REQUEST, name)


def tokens_for_engines() -> RefusedError:
    """A client has sent the tokens of its chat to the engines' KV protocol."""
    name = "kv_transfer_params.prompt_token_ids"
    message = (
        f"{name} is not accepted: both engines of a request must have the prompt that its messages give. Leave it out, "
        "or send the tokens as `prompt` of /v1/completions."
    )
    return RefusedError(400, message, BAD_REQUEST, name)


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


def head_too_large(line: int, headers: int) -> RefusedError:
    """A line of the request's head is longer than `line` bytes, or it has more than `headers` headers."""
    message = f"The request's head is too large: at most {headers} headers, and {line} bytes in each line, are taken."
    return RefusedError(431, message, "Request Header Fields Too Large")


def no_such_model(name: str) -> RefusedError:
    """No engine serves the model; vLLM's error (entrypoints/openai/models/serving.py, check_model)."""
    return RefusedError(404, f"The model `{name}` does not exist.", "NotFoundError", "model")


def body_too_large(limit: int) -> RefusedError:
    """The body is larger than `limit` bytes."""
    message = f"The request body is too large: at most {limit} bytes are taken."
    return RefusedError(413, message, "Request Entity Too Large")


def body_inflates(ratio: int) -> RefusedError:
    """The compressed body has much more content than bytes."""
    message = f"The request body inflates to more than {ratio} times its size; send it without compression."
    return RefusedError(413, message, "Request Entity Too Large")


def unknown_coding() -> RefusedError:
    """The body has a content encoding that the gateway does not read."""
    refusal = RefusedError(415, "The request body must have no content encoding, or gzip or deflate.", BAD_REQUEST)
    refusal.headers = {"accept-encoding": "gzip, deflate, identity"}
    return refusal


def _out_of_bounds(message: str) -> RefusedError:
    return RefusedError(400, message, BAD_REQUEST, "body")


def _invalid(detail: dict[str, Any], param: str = "body") -> RefusedError:
    return RefusedError(400, f"1 validation error:\n  {detail}", BAD_REQUEST, param, one_shape=True)
