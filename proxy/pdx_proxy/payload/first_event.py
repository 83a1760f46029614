"""The first event of an engine's answer. It decides whether the answer goes to the client."""

from typing import Final

from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.failures import BadAnswer, Reason
from pdx_proxy.payload.error_event import error_of

_BUFFERED_BYTES: Final = 1024 * 1024
"""How much of an answer is buffered and inspected before it is relayed, or counts as failed."""
_ABORTED: Final = b'"finish_reason":"abort"'
_ANNOUNCEMENTS: Final = frozenset(
    (b"response.created", b"response.in_progress", b"response.queued", b"message_start", b"ping")
)
"""Events that prove nothing. vLLM sends `response.created` before the engine has the request
(openai/responses/serving.py), and `message_start` as it sends a chat's role (anthropic/serving.py)."""


def is_open(endpoint: str, answer: Answer) -> bool:
    """Whether enough of the answer has arrived to relay it; raises BadAnswer if it reports that the engine failed.

    vLLM answers 200 before the KV has arrived: a failed load is an error event at the head of the stream. An engine
    that shuts down answers 200 with the finish reason "abort".
    """
    if not answer.status:
        return False
    if answer.status >= 500:
        if not answer.complete and answer.size <= _BUFFERED_BYTES:
            return False
        body = answer.document if answer.complete else b""
        raise BadAnswer(endpoint, f"status {answer.status}", Reason.STATUS, answer.status, body)
    if answer.status != 200:  # the caller may need the whole error object
        return answer.complete or answer.size > _BUFFERED_BYTES
    if answer.framed or answer.is_event_stream:
        return _is_stream_open(endpoint, answer) or answer.complete or answer.size > _BUFFERED_BYTES
    if not answer.complete:
        return answer.size > _BUFFERED_BYTES
    if answer.content.find(_ABORTED) >= 0:  # slower with `in`, which first checks for an integer operand
        raise BadAnswer(endpoint, "aborted by the engine", Reason.ABORT, 503, b"")
    return True


def _is_stream_open(endpoint: str, answer: Answer) -> bool:
    """Whether an event shows that the engine generates. Every byte is searched once, however the stream is divided."""
    content, begin = answer.content, answer.event_begin
    while True:
        end, after = _event_end(content, max(begin, answer.inspected))
        if end < 0:
            answer.event_begin = begin
            answer.inspected = max(begin, len(content) - 2)  # a separator may have begun
            return False
        if _proves(endpoint, bytes(content[begin:end])):
            return True
        begin = after


def _event_end(content: bytes | bytearray, begin: int) -> tuple[int, int]:
    """Where the next event ends and where the one behind it begins; -1 if it has not ended.

    Lines end in LF or CR LF; an empty line ends an event. (A CR alone, which the standard of server-sent events also
    allows, is sent by no engine.)
    """
    end = content.find(b"\n\n", begin)
    crlf = content.find(b"\n\r\n", begin, end + 1 if end >= 0 else len(content))
    if crlf >= 0:
        return crlf, crlf + 3
    return end, end + 2


def _proves(endpoint: str, event: bytes) -> bool:
    """Whether an event shows that the engine generates; raises BadAnswer if it reports that the engine failed."""
    name = b""
    if not event.startswith(b"data:") or event.find(b"\n") >= 0:
        name, event = _fields(event)
        if not event or name in _ANNOUNCEMENTS:  # an event without data is no event: a comment
            return False
    if event.find(b'"error"') >= 0:
        error = error_of(name, event.removeprefix(b"data:"))
        if error is not None:
            raise BadAnswer(endpoint, "an error event", Reason.ERROR_EVENT, error.status, error.body)
    if event.find(_ABORTED) >= 0:
        raise BadAnswer(endpoint, "aborted by the engine", Reason.ABORT, 503, b"")
    return not _only_announces(event)


def _fields(event: bytes) -> tuple[bytes, bytes]:
    """The name and the data of an event of several lines, or with other fields than data; both may be empty."""
    name, data = b"", []
    for line in event.split(b"\n"):
        field, _, value = line.removesuffix(b"\r").partition(b":")
        if field == b"event":
            name = value.strip()
        elif field == b"data":
            data.append(value)
    return name, b"\n".join(data)


def _only_announces(event: bytes) -> bool:
    """Whether a chat event has the role but no content. The event with content follows at once."""
    return event.find(b'"role":"assistant","content":""') >= 0 and event.find(b'"finish_reason":null') >= 0
