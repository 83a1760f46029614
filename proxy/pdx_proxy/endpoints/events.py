"""What workers tell the control side of endpoints. It alone decides what becomes of them."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why an endpoint was left out: a metric's label."""

    LOST = "lost"
    """A connection or a hand-off was lost: it may have died or restarted."""
    HUNG = "timeout"
    """It said nothing for as long as it may."""
    FAILURES = "consecutive_errors"
    """It answered, and too many answers in a row said that it failed."""
    KEPT = "overridden"
    """As above, and picked on: no other engine could do its work."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An endpoint is to be warmed anew before it is picked again."""

    name: str
    start: int
    """The start that this is about: an older one says nothing of the present."""
    reason: str
    cause: Cause = Cause.LOST


@dataclass(frozen=True, slots=True)
class LostHandoff:
    """A D waits for a push that never comes: the blocks it has allocated stay held."""

    name: str


EndpointEvent = Suspect | LostHandoff
EventSink = Callable[[EndpointEvent], None]
