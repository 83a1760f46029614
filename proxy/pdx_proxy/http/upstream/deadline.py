"""How long an answer is waited for: one timer for all exchanges of a connection.

A wait moves a time, and the timer finds out when it fires whether that has come. (A timer of its own for every wait is
a tenth of a short request.)
"""

import asyncio
from math import inf
from typing import Final, Protocol

_LOOKS: Final = 4
"""How often an answer that is being relayed is looked at in the time in which it may be idle."""
_TIMER_SECONDS: Final = 0.002
"""How much too early a timer may fire: uvloop counts in milliseconds."""


class Awaited(Protocol):
    """What a wait asks of its connection."""

    @property
    def heard(self) -> int:
        """Bytes of body so far."""

    @property
    def complete(self) -> bool:
        """Whether the answer is complete: no more of it is waited for."""

    @property
    def paused(self) -> bool:
        """Whether the engine is not read, because the client is slow: it is not idle then."""

    def wake(self) -> None:
        """The wait is over."""


class Wait:
    """The present wait of one connection."""

    __slots__ = (
        "_awaited",
        "_every",
        "_expires",
        "_heard",
        "_loop",
        "_quiet",
        "_timer",
        "_timer_at",
        "_until",
        "expired",
        "seconds",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, awaited: Awaited) -> None:
        self._loop = loop
        self._awaited = awaited
        self._expires = inf
        """When the wait is over, in the loop's time."""
        self._until = inf
        """When the whole request's time is over."""
        self._every = inf
        """How often a relayed answer is looked at, in seconds; `inf` while none is."""
        self._heard = self._quiet = 0
        """Bytes of body at the last look, and looks since there were more."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self.seconds = 0.0
        """How long was allowed."""
        self.expired = False

    def allow(self, seconds: float, until: float) -> None:
        """Be over after so many seconds from now, or at the time `until`; `inf` lasts."""
        self.seconds = seconds
        self.expired = False
        self._every = inf
        self._until = until
        expires = self._loop.time() + seconds
        self._expires = expires = expires if expires < until else until
        if expires < self._timer_at:  # else it is set when it fires
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer()

    def watch(self, idle: float, until: float) -> None:
        """Be over when nothing of an answer comes for `idle` seconds, or at `until`.

        A look now and then compares how much has arrived, so that a chunk costs nothing: the wait ends up to a
        quarter late.
        """
        self.allow(idle / _LOOKS, until)
        self.seconds = idle
        self._every = idle / _LOOKS
        self._heard, self._quiet = self._awaited.heard, 0

    def forget(self) -> None:
        """A new exchange begins: nothing is waited for yet."""
        self.expired = False
        self._expires = inf

    def cancel(self) -> None:
        """The connection is over."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def left(self) -> float:
        """How much is left of the time that was allowed."""
        return self._expires - self._loop.time()

    @property
    def request_over(self) -> bool:
        """Whether it is the whole request's time that is over."""
        return self._loop.time() >= self._until - _TIMER_SECONDS

    def _is_idle(self) -> bool:
        awaited = self._awaited
        heard, self._heard = self._heard, awaited.heard
        self._quiet = 0 if awaited.paused or self._heard != heard else self._quiet + 1
        return self._quiet >= _LOOKS or awaited.complete

    def _set_timer(self) -> None:
        self._timer_at = self._expires
        self._timer = None if self._expires == inf else self._loop.call_at(self._expires, self._look_at_time)

    def _look_at_time(self) -> None:
        self.expired = self._expires == self._timer_at
        if self.expired and self._every < inf and self._expires < self._until and not self._is_idle():
            self.expired = False
            self._expires = min(self._loop.time() + self._every, self._until)
        if self.expired:
            self._expires = inf
            self._awaited.wake()
        self._set_timer()
