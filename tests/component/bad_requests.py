"""Requests that vLLM 0.32 answers with 500, and engines that answer by what a request has."""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Self

from pdx_sim import FaultKind, SimEngine
from pdx_sim.api.server import Seen

MARK: Final = "MARK"
"""The prompt contains it."""
_PROMPT: Final = f"{MARK} what a long prompt this is. " * 20
_CHAT: Final = {"model": "sim", "messages": [{"role": "user", "content": _PROMPT}], "max_tokens": 8}
_NAMED: Final = {"type": "function", "function": {"name": "a"}}
_TEXT: Final = {"model": "sim", "prompt": _PROMPT, "max_tokens": 8}


def _response(parts: list[dict[str, str]]) -> dict[str, Any]:
    """A turn after an answer of these parts."""
    former = {"type": "message", "role": "assistant", "content": parts}
    return {"model": "sim", "input": [former, {"role": "user", "content": _PROMPT}], "max_output_tokens": 8}


KINDS: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "completion: structured_outputs is no object": (
        "/v1/completions",
        {**_TEXT, "structured_outputs": "x"},
        "'str' object has no attribute 'get'",
    ),
    "chat: structured_outputs is no object": (
        "/v1/chat/completions",
        {**_CHAT, "structured_outputs": [1]},
        "'list' object has no attribute 'get'",
    ),
    "chat: a tool has no function": (
        "/v1/chat/completions",
        {**_CHAT, "tools": [{"type": "function"}], "tool_choice": _NAMED},
        "'function'",
    ),
    "chat: a function has no name": (
        "/v1/chat/completions",
        {**_CHAT, "tools": [{"type": "function", "function": {}}], "tool_choice": _NAMED},
        "'name'",
    ),
    "response: a former answer is a refusal": (
        "/v1/responses",
        _response([{"type": "refusal", "refusal": "no"}]),
        "'ResponseOutputRefusal' object has no attribute 'text'",
    ),
    "response: a former answer is empty": ("/v1/responses", _response([]), "list index out of range"),
}
"""By name: path, body and vLLM's message."""


class Watched(deque[Seen]):
    """What an engine has received, which reports each request before the engine begins to work on it."""

    def __init__(self, before: deque[Seen], on_request: Callable[[Seen], None]) -> None:
        super().__init__(before, before.maxlen)
        self._on_request = on_request

    @classmethod
    def attach(cls, engine: SimEngine, on_request: Callable[[Seen], None]) -> Self:
        """Report each request of the engine from here on."""
        watched = cls(engine.seen, on_request)
        engine.seen = watched
        return watched

    def append(self, seen: Seen) -> None:
        """Report and record a request."""
        super().append(seen)
        self._on_request(seen)


class Limiter:
    """Limits one credential at an engine, as a sidecar does."""

    def __init__(self, engine: SimEngine, credential: str, status: int) -> None:
        self._engine = engine
        self._credential = credential
        self._status = status
        Watched.attach(engine, self._receive)

    def _receive(self, seen: Seen) -> None:
        if seen.headers.get("authorization") == self._credential:
            self._engine.faults.add(FaultKind.STATUS, status=self._status, retry_after=10, count=1)
