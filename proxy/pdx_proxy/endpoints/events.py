"""Events of endpoints that workers report to the control side. Only the control side changes an endpoint's state."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Cause(StrEnum):
    """Why an endpoint was ejected: a metric's label."""

    LOST = "lost"
    """A connection was lost before an answer, or refused: the engine may have died or restarted."""
    TIMEOUT = "timeout"
    """The engine answered no health check."""
    STALLED = "stalled"
    """The engine's own metrics show running requests and no progress."""
    CONSECUTIVE_ERRORS = "consecutive_errors"
    """The engine answered, but too many consecutive answers reported an error."""
    FAILED_HANDOFFS = "failed_handoffs"
    """Too many consecutive hand-offs of a P failed at D's that had served others."""
    OVERRIDDEN = "overridden"
    """It would have been ejected by inference, but too many engines of its role are ejected, or it is the last one."""


INFERENCE: Final = frozenset({Cause.CONSECUTIVE_ERRORS, Cause.FAILED_HANDOFFS})
"""Causes that are concluded from requests. The others are evidence about the engine itself."""
HUNG: Final = frozenset({Cause.TIMEOUT, Cause.STALLED})
"""Causes that show that the engine does not work on its requests."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An endpoint must be warmed up again before it is selected."""

    name: str
    generation: int
    """The generation that failed. The event means nothing for a later one."""
    reason: str
    cause: Cause = Cause.LOST


@dataclass(frozen=True, slots=True)
class HealthCheckRequest:
    """An endpoint must answer a health check. What leads to it shows nothing yet about the endpoint.

    A request waited too long for it, its hand-off failed, or it does not report its load and has no work.
    """

    name: str
    generation: int
    """The generation that the request, or the scraper of metrics, used."""


@dataclass(frozen=True, slots=True)
class NotReady:
    """An endpoint lives, and accepts no request by its own answer: it is paused, scales or is retired."""

    name: str
    generation: int
    reason: str
    retired: bool = False


@dataclass(frozen=True, slots=True)
class LostHandoff:
    """A D waits for a push that never comes. The blocks that it has allocated are never freed."""

    name: str


@dataclass(frozen=True, slots=True)
class FailedHandoff:
    """A hand-off failed, and then one engine answered the whole request: KV may not move within the pair."""

    pair: tuple[str, int, str, int]
    """See `pairing`."""


@dataclass(frozen=True, slots=True)
class SlowHandoff:
    """P finished long ago, and D has not answered: D decodes, or KV does not move within the pair."""

    pair: tuple[str, int, str, int]


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A hand-off within a watched pair succeeded."""

    pair: tuple[str, int, str, int]


EndpointEvent = Suspect | NotReady | HealthCheckRequest | LostHandoff
HandoffEvent = FailedHandoff | SlowHandoff | HandedOver
EventSink = Callable[[EndpointEvent | HandoffEvent], None]
