"""The first event of an engine's answer. It decides whether the answer goes to the client.

Which events prove that the engine has produced an output, and so that its KV has arrived (vLLM 0.32, entrypoints/):

* `/v1/completions`: the first one. It has a token or an echo (openai/completion/serving.py,
  `completion_stream_generator`).
* `/v1/chat/completions`: the first one. It has only the role, and vLLM sends it with the first output of the engine
  (openai/chat_completion/serving.py, `chat_completion_stream_generator`, `first_iteration`). What the output contains
  follows at once: text, the error of a failed load, an abort, or nothing while a parser withholds the text.
* `/v1/messages`: `message_start`, into which vLLM converts the chat's role (anthropic/serving.py,
  `message_stream_converter`).
* `/v1/responses`: the first one after `response.created` and `response.in_progress`, which vLLM sends before the engine
  has the request (openai/responses/serving.py, `responses_stream_generator`). While a parser withholds the text, there
  is none (`_process_simple_streaming_events`): only the engine's metrics show then that it generates.
"""

from typing import Final

import msgspec

from pdx_proxy.http.upstream.answer import Answer, is_redirect
from pdx_proxy.http.upstream.failures import BadAnswer, Reason
from pdx_proxy.payload.decisions import MESSAGES, RESPONSES
from pdx_proxy.payload.error_event import error_of
from pdx_proxy.payload.prefill_answer import COMPLETED, ENDED

_BUFFERED_BYTES: Final = 1024 * 1024
"""How much of an answer is buffered and inspected before it is relayed, or counts as failed. In a stream, how much of
what may prove something."""
_MOST_EVENTS: Final = 1000
"""Events of one answer that are judged without a pause. An engine sends at most a few before it generates."""
_SERVER_ERROR: Final = 500
_MOST_LINES: Final = 1000
"""Lines of an event that is judged. vLLM's have at most two."""
_NEAR_BYTES: Final = 4096
"""Within so many bytes, the two ends that an event may have are searched first. Most events are shorter."""
_REPEATED: Final = 3
"""How often events that prove nothing may have the bytes of the request that they repeat. vLLM does so twice before the
engine has the request, with the default values of members that the client left out."""
_ABORTED: Final = b'"finish_reason":"abort"'
_DONE: Final = b"[DONE]"
_NO_CHOICES: Final = b'"choices":[]'
"""Of the event with the usage. vLLM before 0.32 ends a completion whose KV failed to load without another event
(openai/completion/serving.py, `completion_stream_generator`: it skips an output without tokens before it raises)."""
_STOP_REASON: Final = b'"stop_reason":'
_NO_STOP_REASON: Final = b'"stop_reason":null'
"""Of a message whose request was aborted. In an answer that is no stream the member is missing."""
_NO_TOKENS: Final = b'"output_tokens":0,'
"""Of a response whose request was aborted before its first token: vLLM reports it as completed."""
_SHORT_BYTES: Final = 4096
"""A longer event is copied only if it may prove something."""
_NAME_BYTES: Final = 64
"""The longest line with the name of an event, of those below."""
_ANNOUNCEMENTS: Final = frozenset(
    (b"response.created", b"response.in_progress", b"response.queued", b"message_start", b"ping")
)
"""Events that prove nothing by themselves. Behind `message_start`, an error or an abort may follow at once."""
_START: Final = b"message_start"
_REPEATING: Final = _ANNOUNCEMENTS | {b"response.completed", b"response.failed", b"response.incomplete"}
"""Events with the whole response, which repeats the client's instructions and tools."""


def is_open(endpoint: str, answer: Answer, path: str = "", sent: int = 0) -> bool:
    """Whether enough of the answer has arrived to relay it; raises BadAnswer if it reports that the engine failed.

    `sent`: bytes of the request's body.

    vLLM answers 200 before the KV has arrived: a failed load is an error event at the head of the stream. An engine
    that shuts down answers 200 with the finish reason "abort", or with what stands for it at `path`. An answer that is
    complete and shows nothing has failed, too.

    False with `answer.unread`: call it again after other work.
    """
    if not answer.status:
        return False
    if answer.status >= 500:
        if not answer.complete and answer.size <= _BUFFERED_BYTES:
            return False
        body = answer.document if answer.complete else b""
        raise BadAnswer(endpoint, f"status {answer.status}", Reason.STATUS, answer.status, body, answer.text)
    if is_redirect(answer.status):  # its target is inside the cluster: for the log alone
        raise BadAnswer(endpoint, f"status {answer.status}", Reason.STATUS, 502, b"", answer.text)
    if answer.status != 200:  # the caller may need the whole error object
        return answer.complete or answer.size > _BUFFERED_BYTES
    if answer.framed or answer.is_event_stream:
        if _is_stream_open(endpoint, answer) or _exceeds(answer, sent):
            return True
        if not answer.complete or answer.unread:
            return False
        if answer.content[answer.event_begin :].isspace() or answer.event_begin == answer.size:
            raise BadAnswer(endpoint, "a stream that ended without an event", Reason.LOST, 502, b"")
        return True
    if not answer.complete and answer.size <= _BUFFERED_BYTES:
        return False
    if not answer.size or answer.content.isspace():
        raise BadAnswer(endpoint, "an empty answer", Reason.LOST, 502, b"")
    if answer.complete and _is_aborted(path, answer.content):
        raise BadAnswer(endpoint, "aborted by the engine", Reason.ABORT, 503, b"")
    return True


def _is_aborted(path: str, content: bytes | bytearray) -> bool:
    """Whether a complete answer is one of an engine that shuts down."""
    if path == MESSAGES:
        return content.find(_STOP_REASON) < 0
    if path == RESPONSES:
        return _has_no_tokens(content)
    return content.find(_ABORTED) >= 0  # slower with `in`, which first checks for an integer operand


def _has_no_tokens(content: bytes | bytearray) -> bool:
    """Whether a response has no tokens. It repeats the client's tools, which may have a member of the same name."""
    if content.find(_NO_TOKENS) < 0:
        return False
    try:
        return ENDED.decode(content).usage.output_tokens == 0
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _is_stream_open(endpoint: str, answer: Answer) -> bool:
    """Whether an event decides for the client. Every byte is searched once, however the stream is divided.

    Sets `answer.generates` for an event that shows only that the engine has produced an output.
    """
    content, begin = answer.content, answer.event_begin
    answer.unread = False
    for _ in range(_MOST_EVENTS):
        end, after = _event_end(content, max(begin, answer.inspected))
        if end < 0:
            answer.event_begin = begin
            answer.inspected = max(begin, len(content) - 2)  # a separator may have begun
            return False
        if end - begin > _SHORT_BYTES and (name := _name_of(content, begin)) in _ANNOUNCEMENTS:
            answer.generates = answer.generates or name == _START
        elif _proves(endpoint, answer, bytes(content[begin:end])):
            return True
        begin = after
    answer.event_begin = answer.inspected = begin
    answer.unread = True
    return False


def _exceeds(answer: Answer, sent: int) -> bool:
    """Whether too much of a stream is buffered without a proof. What repeats the request is bounded by its size."""
    size, begin = answer.size, answer.event_begin
    if answer.unread:
        return size > 2 * _BUFFERED_BYTES + _REPEATED * sent
    if size <= _BUFFERED_BYTES:
        return False
    if size > _BUFFERED_BYTES + _REPEATED * sent:
        return True
    return size - begin > _BUFFERED_BYTES and _name_of(answer.content, begin) not in _REPEATING


def _name_of(content: bytes | bytearray, begin: int) -> bytes:
    """The name of the event that begins there, if its first line is the name and has arrived; else empty."""
    line, end, _ = bytes(content[begin : begin + _NAME_BYTES]).partition(b"\n")
    return line.removeprefix(b"event:").strip() if end and line.startswith(b"event:") else b""


def _event_end(content: bytes | bytearray, begin: int) -> tuple[int, int]:
    """Where the next event ends and where the one behind it begins; -1 if it has not ended.

    Lines end in LF or CR LF; an empty line ends an event. (A CR alone, which the standard of server-sent events also
    allows, is sent by no engine.)
    """
    near, size = begin + _NEAR_BYTES, len(content)
    end = content.find(b"\n\n", begin, near)
    crlf = content.find(b"\n\r\n", begin, end + 1 if end >= 0 else near)
    if end < 0 and crlf < 0 and near < size:
        end = content.find(b"\n\n", begin)
        crlf = content.find(b"\n\r\n", begin, end + 1 if end >= 0 else size)
    if crlf >= 0:
        return crlf, crlf + 3
    return end, end + 2


def _proves(endpoint: str, answer: Answer, event: bytes) -> bool:
    """Whether an event decides for the client: the engine generates, or refuses the request (`answer.refused`).

    Raises BadAnswer if the event reports that the engine failed.
    """
    name = b""
    if not event.startswith(b"data:") or event.find(b"\n") >= 0:
        if event.count(b"\n") > _MOST_LINES:  # not vLLM's: it goes to the client, as an event that is too long
            return True
        name, event = _fields(event)
        if not event or name in _ANNOUNCEMENTS:  # an event without data is no event: a comment
            answer.generates = answer.generates or (name == _START and bool(event))
            return False
    if event.find(b'"error"') >= 0:
        error = error_of(name, event.removeprefix(b"data:"))
        if error is not None and error.status < _SERVER_ERROR:
            answer.refused = True
            return True
        if error is not None:
            raise BadAnswer(endpoint, "an error event", Reason.ERROR_EVENT, error.status, error.body)
    if event.find(_ABORTED) >= 0 or (name and _ends_without_token(name, event)):
        raise BadAnswer(endpoint, "aborted by the engine", Reason.ABORT, 503, b"")
    if _only_announces(event):
        answer.generates = True
        return False
    return not _only_ends(event)


def _ends_without_token(name: bytes, event: bytes) -> bool:
    """Whether an event behind announcements alone ends a message or a response that was aborted."""
    if name == b"message_delta":
        return event.find(_NO_STOP_REASON) >= 0
    return name == b"response.completed" and _completes_without_token(event)


def _completes_without_token(event: bytes) -> bool:
    if event.find(_NO_TOKENS) < 0:
        return False
    try:
        return COMPLETED.decode(event).response.usage.output_tokens == 0
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


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


def _only_ends(event: bytes) -> bool:
    """Whether an event without a token ends a stream or reports its usage."""
    return event.rstrip().endswith(_DONE) or event.find(_NO_CHOICES) >= 0


def _only_announces(event: bytes) -> bool:
    """Whether a chat event has the role but no content."""
    return event.find(b'"role":"assistant","content":""') >= 0 and event.find(b'"finish_reason":null') >= 0
