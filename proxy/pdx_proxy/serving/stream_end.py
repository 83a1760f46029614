"""The events that end a broken stream, in the shape of its API. Pure."""

from typing import Final

import orjson

from pdx_proxy.http.errors import error_body
from pdx_proxy.http.upstream.failures import DeadlineExceeded, EngineFailure, RequestExpired

_MESSAGES: Final = "/v1/messages"
_RESPONSES: Final = "/v1/responses"
_ANTHROPIC_TYPES: Final = {500: "api_error", 503: "overloaded_error", 504: "timeout_error"}
"""The types of Anthropic's error objects (anthropic/types/shared/error_type.py)."""
_NUMBER: Final = b'"sequence_number":'


class Break:
    """Why an answer ends early, as its client receives it."""

    __slots__ = ("kind", "message", "status")

    def __init__(self, status: int, message: str, kind: str) -> None:
        self.status = status
        self.message = message
        self.kind = kind
        """vLLM's error type."""

    @property
    def body(self) -> bytes:
        """The error as the body of an answer, in vLLM's shape."""
        return error_body(self.status, self.message, self.kind)


def break_of(failure: EngineFailure | RequestExpired) -> Break:
    """What a client receives when its answer breaks, or when its request expires."""
    if isinstance(failure, RequestExpired):
        return Break(504, "The request took too long.", "GatewayTimeoutError")
    if isinstance(failure, DeadlineExceeded):
        return Break(504, "The engine went silent while it answered.", "GatewayTimeoutError")
    return Break(500, "The engine was lost while it answered.", "InternalServerError")


def stream_end(path: str, last_chunk: bytes, broken: Break) -> bytes:
    """The last events of a stream on this path whose last piece is `last_chunk`.

    Clients of Anthropic's Messages and of OpenAI's Responses read the names of events, and take `[DONE]` for JSON.
    """
    if path == _MESSAGES:
        error = {"type": _ANTHROPIC_TYPES[broken.status], "message": broken.message}
        return _named_event({"type": "error", "error": error})
    if path == _RESPONSES:  # openai/types/responses/response_error_event.py
        fields = {"code": "server_error", "message": broken.message, "param": None}
        return _named_event({"type": "error", **fields, "sequence_number": _next_number(last_chunk)})
    return b"data: " + broken.body + b"\n\ndata: [DONE]\n\n"


def _named_event(error: dict[str, object]) -> bytes:
    return b"event: error\ndata: " + orjson.dumps(error) + b"\n\n"


def _next_number(last_chunk: bytes) -> int:
    """The number behind that of the last event of the Responses API; 0 where the last piece has none."""
    begin = last_chunk.rfind(_NUMBER)
    digits = last_chunk[begin + len(_NUMBER) :][:20].lstrip().split(b",", 1)[0].split(b"}", 1)[0] if begin >= 0 else b""
    return int(digits) + 1 if digits.isdigit() else 0
