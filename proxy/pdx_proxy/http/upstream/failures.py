"""What can go wrong with an engine's leg, as one small tree.

EngineFailure
├── ConnectFailure    the engine could not be reached; nothing was sent
├── LostConnection    the connection ended or spoke rubbish before the answer was complete
├── DeadlineExceeded  a wait took longer than its deadline
└── BadAnswer         an answer that says the engine failed: 5xx, an error event, an abort nobody asked for
"""

from enum import StrEnum


class Reason(StrEnum):
    """Why an attempt failed: a metric's label."""

    CONNECT = "connect"
    LOST = "lost"
    DEADLINE = "deadline"
    STATUS = "status"
    ERROR_EVENT = "error_event"
    ABORT = "abort"


class EngineFailure(Exception):  # noqa: N818 (a failure of an engine, not an error of the gateway)
    """A leg failed at an engine before anything of it reached the client."""

    reason = Reason.LOST

    def __init__(self, endpoint: str, detail: str) -> None:
        super().__init__(f"{endpoint}: {detail}")
        self.endpoint = endpoint
        self.detail = detail


class ConnectFailure(EngineFailure):
    """Nothing was sent: the engine may be called again, or another one, without thought."""

    reason = Reason.CONNECT


class LostConnection(EngineFailure):
    """The connection ended, or what came over it was not HTTP."""

    reason = Reason.LOST


class DeadlineExceeded(EngineFailure):
    """The engine took too long."""

    reason = Reason.DEADLINE


class RequestExpired(Exception):  # noqa: N818
    """The whole request has taken too long: the fault of no engine in particular, and nothing to try again."""


class BadAnswer(EngineFailure):
    """The engine answered that it failed."""

    def __init__(self, endpoint: str, detail: str, reason: Reason, status: int, body: bytes) -> None:
        super().__init__(endpoint, detail)
        self.reason = reason
        self.status = status
        self.body = body
        """The answer's body, for a client when no attempt is left; empty when it is no JSON document."""
