"""Reads the events of a streamed answer: when tokens came, how many there are, and whether it failed. Pure.

It counts as `vllm bench serve` does (benchmarks/lib/endpoint_request_func.py): an event with a choice is a token, even
with an empty text, and the last event's `usage` has the number of tokens.
"""

from typing import Any, Final

import msgspec

_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_MOST_DETAIL: Final = 300


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[msgspec.Raw] = []
    usage: _Usage | None = None
    error: Any = None


_DECODER: Final = msgspec.json.Decoder(_Event)


class EventReader:
    """The events of one answer, in pieces as they come."""

    __slots__ = ("_rest", "error", "first", "gaps", "last", "output_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self.first = -1.0
        self.last = -1.0
        self.gaps: list[float] = []
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.error = ""
        """The error in the stream; empty if there is none."""
        self._rest = b""

    def add(self, data: bytes, at: float) -> None:
        """Read a piece that arrived at this time."""
        if self._rest:
            data = self._rest + data
        if data.endswith(b"\n\n"):
            self._rest = b""
            for event in data.split(b"\n\n"):
                if event:
                    self._event(event, at)
            return
        *events, self._rest = data.replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if event:
                self._event(event, at)

    def _event(self, event: bytes, at: float) -> None:
        start = event.find(_DATA)
        if start < 0:
            return  # a comment: the server keeps the connection alive
        payload = event[start + len(_DATA) :].strip()
        if payload == _DONE:
            return
        try:
            found = _DECODER.decode(payload)
        except msgspec.MsgspecError:
            self.error = self.error or f"an event is no JSON: {payload[:_MOST_DETAIL].decode(errors='replace')}"
            return
        if found.error is not None:
            message = found.error.get("message") if isinstance(found.error, dict) else None
            self.error = self.error or str(message or found.error)[:_MOST_DETAIL]
        elif found.choices:
            self._token(at)
        if found.usage is not None:
            self.prompt_tokens = found.usage.prompt_tokens or self.prompt_tokens
            self.output_tokens = found.usage.completion_tokens or self.output_tokens

    def _token(self, at: float) -> None:
        if self.first < 0:
            self.first = at
        else:
            self.gaps.append(at - self.last)
        self.last = at

    @property
    def tokens(self) -> int:
        """Tokens of the answer, by `usage`, or else one for each event."""
        return self.output_tokens or (len(self.gaps) + 1 if self.first >= 0 else 0)
