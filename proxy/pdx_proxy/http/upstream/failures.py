"""The failures of a request to an engine. Pure.

EngineFailure
├── ConnectFailure    the engine could not be reached; nothing was sent
│   └── ConnectTimeout    it did not refuse the connection either
├── LostConnection    the connection ended, or received bytes that are not HTTP, before the answer was complete
│   └── ClosedConnection  the engine closed it behind the head of an answer, or as one that had been idle
├── EndedEarly        the answer's framing ended properly, before the end of its protocol
├── DeadlineExceeded  a wait exceeded its deadline
└── BadAnswer         an answer that reports a failure of the engine: 5xx, an error event, an unexpected abort
    └── EngineBusy        a 429 or 503 with Retry-After: the engine accepts no request for that time
        └── EngineUnready     the engine says that it is paused, scales or is retired: it accepts no request at all
"""

import errno
import re
from enum import StrEnum
from typing import Final

_LOCAL: Final = frozenset(
    (
        *(errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EAGAIN, errno.EMFILE, errno.ENFILE),
        *(errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC),
    )
)
"""Errors of a socket that come from a limit of this process or of its host: ports, files, buffers, memory, watches."""
_IN_TEXT: Final = re.compile(r"\[Errno (\d+)\]")
_VLLM_ERROR: Final = re.compile(rb'^\s*\{\s*"error"\s*:\s*\{')
"""The beginning of an error object (vLLM's entrypoints/serve/engine/protocol.py: ErrorResponse)."""


_UNREADY_SECONDS: Final = 0.1
"""How long a worker sends nothing to an engine that is not ready. By then the control side has left it out."""


class Reason(StrEnum):
    """Why an attempt failed: the label of a metric."""

    CONNECT = "connect"
    LOST = "lost"
    DEADLINE = "deadline"
    STATUS = "status"
    ERROR_EVENT = "error_event"
    ABORT = "abort"
    LOCAL = "local"
    """The gateway itself was out of ports, files, buffers or memory."""


class EngineFailure(Exception):  # noqa: N818 (a failure of an engine, not an error of the gateway)
    """A request failed at an engine."""

    reason = Reason.LOST

    def __init__(self, endpoint: str, detail: str, *, local: bool = False) -> None:
        super().__init__(f"{endpoint}: {detail}")
        self.endpoint = endpoint
        self.detail = detail
        self.local = local
        """Whether the gateway's own limits caused it. It then shows nothing about the engine, and is not retried."""
        if local:
            self.reason = Reason.LOCAL


class ConnectFailure(EngineFailure):
    """Nothing was sent: a retry at this engine or another one is always safe."""

    reason = Reason.CONNECT


class ConnectTimeout(ConnectFailure):
    """The engine neither accepted nor refused the connection: it is busy, hung or unreachable."""


class LostConnection(EngineFailure):
    """The connection ended, or received bytes that are not HTTP."""

    reason = Reason.LOST


class ClosedConnection(LostConnection):
    """The engine closed the connection behind the head of an answer, or as one that had been idle.

    That may concern this connection alone: vLLM closes it when it fails inside a stream.
    """

    def __init__(self, endpoint: str, detail: str, *, local: bool = False, events: int = -1) -> None:
        super().__init__(endpoint, detail, local=local)
        self.events = events
        """Whole events of a stream that broke off, as far as they are kept; -1: it was no stream."""


class EndedEarly(EngineFailure):
    """A stream ended without the last event of its API. Its client has it as the engine sent it."""


class DeadlineExceeded(EngineFailure):
    """The engine took too long."""

    reason = Reason.DEADLINE


class RequestExpired(Exception):  # noqa: N818
    """The whole request has taken too long. No single engine caused it, and there is no retry."""


class BadAnswer(EngineFailure):
    """The engine's answer reports that it failed."""

    def __init__(self, endpoint: str, detail: str, reason: Reason, status: int, body: bytes, text: str = "") -> None:
        super().__init__(endpoint, detail)
        self.reason = reason
        self.status = status
        self.body = body
        """The answer's body, which goes to the client after the last attempt; empty if it is not JSON."""
        self.text = text
        """What a body that is not JSON says, for the log; empty for any other answer."""


class EngineBusy(BadAnswer):
    """The engine accepts no request for some time, and has named it. Hand-offs treat it as an engine that is full."""

    def __init__(
        self, endpoint: str, seconds: float, answered: int, body: bytes, detail: str = "", text: str = ""
    ) -> None:
        super().__init__(endpoint, detail or f"busy for {seconds:g} s", Reason.STATUS, 503, body, text)
        self.seconds = seconds
        self.answered = answered
        """The status that the engine answered."""

    @property
    def by_engine(self) -> bool:
        """Whether the engine itself is full, whoever asks. It then answers 503 with an error in vLLM's format.

        A 429 is the limit of a client, and so is a 503 in another format: a sidecar or a mesh has answered it.
        """
        return self.answered == 503 and _VLLM_ERROR.search(self.body) is not None


class Unready(StrEnum):
    """Why an engine that lives accepts no request, by its own answer."""

    PAUSED = "is paused, and serves no request until it is resumed (POST /resume)"
    SCALING = "adds or removes data-parallel ranks, and refuses requests meanwhile"
    RETIRED = "is a data-parallel rank that was retired, and refuses requests until it is ended"


_UNREADY: Final = (
    (
        re.compile(
            rb'^\s*\{\s*("type": ?"error",\s*)?"error": ?\{\s*("type": ?"\w+",\s*)?"message": ?"Generation is paused\.'
        ),
        Unready.PAUSED,
    ),
    (re.compile(rb'^\s*\{\s*"error": ?"The model is currently scaling\.'), Unready.SCALING),
    (re.compile(rb'^\s*\{\s*"error": ?"This data-parallel rank has been retired '), Unready.RETIRED),
)
"""vLLM 0.33, v1/engine/core.py (`_reject_add_while_paused`) and entrypoints/serve/elastic_ep/middleware.py."""


class EngineUnready(EngineBusy):
    """The engine lives, and accepts no request of anybody until it changes its state. It has done no work."""

    def __init__(self, endpoint: str, why: Unready, body: bytes) -> None:
        super().__init__(endpoint, _UNREADY_SECONDS, 503, body, why.value)
        self.why = why

    @property
    def by_engine(self) -> bool:
        return True


def unready(endpoint: str, body: bytes) -> EngineUnready | None:
    """Return the failure if an error's body says that the engine accepts no request at all."""
    for pattern, why in _UNREADY:
        if pattern.search(body) is not None:
            return EngineUnready(endpoint, why, body)
    return None


def is_local(error: BaseException) -> bool:
    """Whether a limit of the gateway's own caused the error.

    asyncio joins the errors of a name with several addresses into the text of one. httptools wraps those of callbacks.
    """
    if isinstance(error, MemoryError) or isinstance(error.__context__, MemoryError):
        return True
    if not isinstance(error, OSError):
        return False
    numbers = [error.errno] if error.errno is not None else map(int, _IN_TEXT.findall(str(error)))
    return not _LOCAL.isdisjoint(numbers)
