"""The cases that are counted: what clients send, over how many connections, and to which gateway."""

import hashlib
import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

_BRACKETS: Final = 300
_CHAT_BYTES: Final = 110_000
_MAX_TOKENS: Final = 16
_EVENTS_PER_SECOND: Final = 50
"""Of a stream: so slow that the gateway receives each event alone, even under callgrind."""

SDK_HEADERS: Final = (
    ("Host", "127.0.0.1:8000"),
    ("Accept-Encoding", "gzip, deflate"),
    ("Connection", "keep-alive"),
    ("authorization", "Bearer EMPTY"),
    ("accept", "application/json"),
    ("content-type", "application/json"),
    ("user-agent", "OpenAI/Python 3.52.0"),
    ("x-stainless-lang", "python"),
    ("x-stainless-package-version", "3.52.0"),
    ("x-stainless-os", "Linux"),
    ("x-stainless-arch", "x64"),
    ("x-stainless-runtime", "CPython"),
    ("x-stainless-runtime-version", "3.11.7"),
    ("x-stainless-async", "false"),
    ("x-stainless-retry-count", "0"),
    ("x-stainless-read-timeout", "600"),
)
"""What OpenAI's Python SDK 3.52 sends beside `Content-Length`, in its order."""


class Flags(Enum):
    """The gateways that are counted, by their flags."""

    DEFAULT = ()
    """Its engines have no metrics page, so their limit is 256: every request is admitted at once."""
    LIMITED = ("--max-in-flight-per-prefill", "4", "--max-in-flight-per-decode", "4")
    """Most requests wait in the queue."""

    @property
    def limits(self) -> range:
        """Return the limits of an engine at which counting may begin."""
        return range(64, 1 << 20) if self is Flags.DEFAULT else range(4, 5)


@dataclass(frozen=True, slots=True)
class Case:
    """Equal requests in a closed loop."""

    name: str
    title: str
    path: str
    body: dict[str, Any]
    few: int
    """Requests of the shorter of the two runs; in streams, events of each."""
    many: int
    connections: int = 1
    flags: Flags = Flags.DEFAULT
    least_waited: float = 0.0
    """The least share of requests that must have waited in the queue."""
    most_waited: float = 0.0
    stream: bool = False

    def request(self, tokens: int = _MAX_TOKENS) -> bytes:
        """Return the bytes of one request."""
        body = json.dumps({**self.body, "max_tokens": tokens, "stream": self.stream}).encode()
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in SDK_HEADERS)]
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "\r\n"]).encode() + body

    @property
    def digest(self) -> str:
        """Return a digest of what is counted. Counts with another digest cannot be compared."""
        facts = (self.request(), self.few, self.many, self.connections, self.flags.value)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _completion(size: int, events_per_second: int = 0) -> dict[str, Any]:
    """Return a completion; the engines check the length in the prompt, and read the pace of a stream from it."""
    return {"model": "bench", "prompt": f"{size}:{events_per_second}:1:".ljust(size, "x")}


def _chat(messages: int) -> dict[str, Any]:
    """Return a chat of about 110 kB in so many messages."""
    content = "x" * (_CHAT_BYTES // messages - 40)
    return {"model": "bench", "messages": [{"role": "user", "content": content} for _ in range(messages)]}


_COMPLETION: Final = ("/v1/completions", _completion(4096))

CASES: Final = (
    Case("completion", "completion of 4 kB, 1 connection", *_COMPLETION, 200, 800),
    Case("connections", "the same, 64 connections", *_COMPLETION, 320, 1280, 64),
    Case("queue", "the same, 64 connections, most requests wait", *_COMPLETION, 320, 1280, 64, Flags.LIMITED, 0.8, 1.0),
    Case(
        "chat",
        f"chat of 110 kB, {_BRACKETS} brackets",
        "/v1/chat/completions",
        _chat(_BRACKETS - 2),  # the other two: of their list, of the body
        40,
        160,
    ),
    Case(
        "event",
        "one event of a stream",
        "/v1/completions",
        _completion(4096, _EVENTS_PER_SECOND),
        50,
        250,
        stream=True,
    ),
)
