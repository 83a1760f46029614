"""The events that end a broken stream, in the shape of its API. Pure."""

import re
from typing import Final

import orjson

from pdx_proxy.http.errors import BAD_REQUEST, anthropic_type, error_body
from pdx_proxy.http.upstream.failures import DeadlineExceeded, EngineFailure, RequestExpired
from pdx_proxy.payload.decisions import MESSAGES, RESPONSES

_MAX_MESSAGE: Final = 1000
"""Characters of a body that is no error of vLLM, in the message of an event."""
_DONE: Final = b"[DONE]"
_DATA: Final = (b"\ndata: ", b"\ndata:")
"""What precedes it, if it is the data of an event."""
_EVENT: Final = b"\nevent: "
_LAST_EVENTS: Final = (b"message_stop", b"response.completed", b"response.incomplete", b"response.failed", b"error")
_FRAMING: Final = re.compile(rb"\r\n[0-9A-Fa-f]+\r\n")
"""Between two chunks."""
_NUMBER: Final = b'"sequence_number":'
_MOST_DIGITS: Final = 15
"""Of a number of an event. Clients read a longer one as a float."""


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


def is_whole(path: str, tail: bytes) -> bool:
    """Whether a stream on this path that ends with `tail` has the end of its protocol: its last event, or an error.

    `tail` may have the framing of chunks, which may begin anywhere in an event.
    """
    return _has_last(path, tail) or _has_last(path, _FRAMING.sub(b"", tail))


def _has_last(path: str, tail: bytes) -> bool:
    """The same for a tail with its last event in one piece. If only its end is there, a response counts as whole:
    its last event repeats all of it."""
    if _has_done(tail):
        return True
    if path in (MESSAGES, RESPONSES):
        begin = (b"\n" + tail).rfind(_EVENT)
        return tail.startswith(_LAST_EVENTS, begin + len(_EVENT) - 1) if begin >= 0 else path == RESPONSES
    return tail.find(b'"error"') >= 0


def _has_done(tail: bytes) -> bool:
    """Whether `[DONE]` is the data of an event, and not in its text. The begin of the first line may be missing."""
    at = tail.rfind(_DONE)
    if at < 0:
        return False
    before = tail[max(at - len(_DATA[0]), 0) : at]
    return before.endswith(_DATA) or any(data.endswith(before) for data in _DATA if at < len(data))


def stream_end(path: str, last_chunk: bytes, broken: Break) -> bytes:
    """The last events of a stream on this path whose last piece is `last_chunk`.

    Clients of Anthropic's Messages and of OpenAI's Responses read the names of events, and take `[DONE]` for JSON.
    """
    if path == MESSAGES:
        error = {"type": anthropic_type(broken.status), "message": broken.message}
        return _named_event({"type": "error", "error": error})
    if path == RESPONSES:  # openai/types/responses/response_error_event.py
        fields = {"code": "server_error", "message": broken.message, "param": None}
        return _named_event({"type": "error", **fields, "sequence_number": _next_number(last_chunk)})
    return b"data: " + broken.body + b"\n\ndata: [DONE]\n\n"


def error_events(path: str, status: int, body: bytes) -> bytes:
    """An answer with an error status as the events of a stream on this path."""
    try:
        document = orjson.loads(body)
        message = document["error"]["message"]
        if not isinstance(message, str):
            raise TypeError(message)
        orjson.dumps(document)  # which fails for what is nested too deep
    except (orjson.JSONDecodeError, LookupError, TypeError):
        message = body.decode(errors="replace")[:_MAX_MESSAGE]
        document = orjson.loads(error_body(status, message, "InternalServerError" if status >= 500 else BAD_REQUEST))
    if path == MESSAGES:
        own = document.get("type") == "error"
        error = {"type": anthropic_type(status), "message": message}
        return _named_event(document if own else {"type": "error", "error": error})
    if path == RESPONSES:
        code = "server_error" if status >= 500 else "rate_limit_exceeded" if status == 429 else "invalid_prompt"
        return _named_event({"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0})
    return b"data: " + orjson.dumps(document) + b"\n\ndata: [DONE]\n\n"


def _named_event(error: dict[str, object]) -> bytes:
    return b"event: error\ndata: " + orjson.dumps(error) + b"\n\n"


def _next_number(last_chunk: bytes) -> int:
    """The number behind that of the last event of the Responses API; 0 where the last piece has none."""
    begin = last_chunk.rfind(_NUMBER)
    digits = last_chunk[begin + len(_NUMBER) :][:20].lstrip().split(b",", 1)[0].split(b"}", 1)[0] if begin >= 0 else b""
    return int(digits) + 1 if digits.isdigit() and len(digits) <= _MOST_DIGITS else 0
