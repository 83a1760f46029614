"""The failures of a request to an engine. Pure.

EngineFailure
├── ConnectFailure    the engine could not be reached; nothing was sent
│   └── ConnectTimeout    it did not refuse the connection either
├── LostConnection    the connection ended, or received bytes that are not HTTP, before the answer was complete
├── DeadlineExceeded  a wait exceeded its deadline
└── BadAnswer         an answer that reports a failure of the engine: 5xx, an error event, an unexpected abort
"""

from enum import StrEnum


class Reason(StrEnum):
    """Why an attempt failed: the label of a metric."""

    CONNECT = "connect"
    LOST = "lost"
    DEADLINE = "deadline"
    STATUS = "status"
    ERROR_EVENT = "error_event"
    ABORT = "abort"


class EngineFailure(Exception):  # noqa: N818 (a failure of an engine, not an error of the gateway)
    """A request failed at an engine."""

    reason = Reason.LOST

    def __init__(self, endpoint: str, detail: str) -> None:
        super().__init__(f"{endpoint}: {detail}")
        self.endpoint = endpoint
        self.detail = detail


class ConnectFailure(EngineFailure):
    """Nothing was sent: a retry at this engine or another one is always safe."""

    reason = Reason.CONNECT


class ConnectTimeout(ConnectFailure):
    """The engine neither accepted nor refused the connection: it is busy, hung or unreachable."""


class LostConnection(EngineFailure):
    """The connection ended, or received bytes that are not HTTP."""

    reason = Reason.LOST


class DeadlineExceeded(EngineFailure):
    """The engine took too long."""

    reason = Reason.DEADLINE


class RequestExpired(Exception):  # noqa: N818
    """The whole request has taken too long. No single engine caused it, and there is no retry."""


class BadAnswer(EngineFailure):
    """The engine's answer reports that it failed."""

    def __init__(self, endpoint: str, detail: str, reason: Reason, status: int, body: bytes) -> None:
        super().__init__(endpoint, detail)
        self.reason = reason
        self.status = status
        self.body = body
        """The answer's body, which goes to the client after the last attempt; empty if it is not JSON."""
