"""The first event of an engine's answer. It decides whether the answer goes to the client."""

from typing import Final

import orjson

from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.failures import BadAnswer, Reason

_BUFFERED_BYTES: Final = 1024 * 1024
"""How much of an answer without a stream is buffered and inspected before it is relayed."""
_ABORTED: Final = b'"finish_reason":"abort"'


def is_open(endpoint: str, answer: Answer) -> bool:
    """Whether enough of the answer has arrived to relay it; raises BadAnswer if it reports that the engine failed.

    vLLM answers 200 before the KV has arrived: a failed load is an error event at the head of the stream. An engine
    that shuts down answers 200 with the finish reason "abort".
    """
    if not answer.status:
        return False
    if answer.status >= 500:
        if not answer.complete:
            return False
        raise BadAnswer(endpoint, f"status {answer.status}", Reason.STATUS, answer.status, answer.document)
    if answer.status != 200:  # the caller may need the whole error object
        return answer.complete or answer.size > _BUFFERED_BYTES
    if answer.header(b"content-type").startswith(b"text/event-stream"):
        return _is_stream_open(endpoint, answer)
    if not answer.complete:
        return answer.size > _BUFFERED_BYTES
    if answer.body.find(_ABORTED) >= 0:  # slower with `in`, which first checks for an integer operand
        raise BadAnswer(endpoint, "aborted by the engine", Reason.ABORT, 503, b"")
    return True


def _is_stream_open(endpoint: str, answer: Answer) -> bool:
    events = answer.body.split(b"\n\n")
    for event in events[:-1]:
        _check(endpoint, event)
        if not _only_announces(event):
            return True
    return answer.complete


def _only_announces(event: bytes) -> bool:
    """Whether a chat event has the role but no content. The event with content follows at once."""
    return event.find(b'"role":"assistant","content":""') >= 0 and event.find(b'"finish_reason":null') >= 0


def _check(endpoint: str, event: bytes) -> None:
    """Raise BadAnswer for an event that reports a failure of the engine."""
    if event.find(b'"error"') >= 0:
        error = _document(event).get("error")
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(code, int) and code >= 500:
            raise BadAnswer(endpoint, "an error event", Reason.ERROR_EVENT, code, orjson.dumps({"error": error}))
    if event.find(_ABORTED) >= 0:
        raise BadAnswer(endpoint, "aborted by the engine", Reason.ABORT, 503, b"")


def _document(event: bytes) -> dict[str, object]:
    try:
        found = orjson.loads(event.removeprefix(b"data:"))
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
