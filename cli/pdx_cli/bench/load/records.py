"""What the generator records of one request. All times are seconds since the step began. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

NEVER: Final = -1.0
"""A time that has not come."""
_TIMING: Final = re.compile(r"([\w-]+);dur=([\d.]+)")
_NO_TIMING: Final[Mapping[str, float]] = MappingProxyType({})


class Failure(StrEnum):
    """How a request failed."""

    CONNECTION = "connection"
    """The connection could not be opened, or ended before the answer did."""
    STATUS = "status"
    """The answer's status is not 200."""
    ERROR_EVENT = "error_event"
    """The stream has an event with an error."""
    NO_TOKEN = "no_token"  # noqa: S105 (not a secret)
    """The answer has no token."""
    UNFINISHED = "unfinished"
    """It had no end when the step was over."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request."""

    index: int
    due: float
    """When it had to be sent."""
    sent: float
    """When it was sent, the connection included."""
    first: float = NEVER
    """When its first token arrived."""
    last: float = NEVER
    """When its last token arrived."""
    ended: float = NEVER
    prompt_tokens: int = 0
    """As the server counts them, or else as planned."""
    output_tokens: int = 0
    gaps: tuple[float, ...] = ()
    """Seconds between the events with tokens that followed each other (ITL)."""
    failure: Failure | None = None
    detail: str = ""
    """Of the failure."""
    warm_up: bool = False
    """Whether it does not count."""
    timing: Mapping[str, float] = field(default_factory=lambda: _NO_TIMING)
    """The gateway's phases in seconds, from `server-timing`; empty if the server does not send them."""
    prefill: str = ""
    """Name of its P, if the gateway sends it."""
    decode: str = ""

    @property
    def ttft(self) -> float:
        """Seconds from sending it to the first token; NEVER if none came."""
        return self.first - self.sent if self.first >= 0 else NEVER

    @property
    def tpot(self) -> float:
        """Seconds for each token after the first; 0 if there is only one."""
        return (self.last - self.first) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def latency(self) -> float:
        """Seconds from sending it to the last token."""
        return self.last - self.sent

    @property
    def lateness(self) -> float:
        """By how many seconds it was sent too late."""
        return self.sent - self.due


def read_timing(header: str) -> dict[str, float]:
    """Return the seconds of each phase, from `prefill;dur=12.3, handoff;dur=4.5`, whose unit is milliseconds."""
    return {name: float(milliseconds) / 1000 for name, milliseconds in _TIMING.findall(header)}
