"""Events of endpoints that workers report to the control side. Only the control side changes an endpoint's state."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why an endpoint was ejected: a metric's label."""

    LOST = "lost"
    """A connection or a hand-off was lost: the engine may have died or restarted."""
    TIMEOUT = "timeout"
    """The engine sent nothing until a deadline."""
    CONSECUTIVE_ERRORS = "consecutive_errors"
    """The engine answered, but too many consecutive answers reported an error."""
    OVERRIDDEN = "overridden"
    """Too many consecutive errors, but no other engine can do its work, so it was not ejected."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An endpoint must be warmed up again before it is selected."""

    name: str
    generation: int
    """The generation that failed. The event means nothing for a later one."""
    reason: str
    cause: Cause = Cause.LOST


@dataclass(frozen=True, slots=True)
class LostHandoff:
    """A D waits for a push that never comes. The blocks that it has allocated are never freed."""

    name: str


EndpointEvent = Suspect | LostHandoff
EventSink = Callable[[EndpointEvent], None]
