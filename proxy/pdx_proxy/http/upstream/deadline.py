"""Deadlines of one connection, with a single timer.

Setting a deadline only stores it. The timer re-arms itself when it fires too early. (One timer per deadline would cost
a tenth of a short request.)
"""

import asyncio
from math import inf
from typing import Final, Protocol

_CHECKS: Final = 4
"""How often the progress of a relayed answer is checked within its idle limit."""
_TIMER_SECONDS: Final = 0.002
"""How much too early a timer may fire: uvloop counts in milliseconds."""


class Progress(Protocol):
    """The progress of an answer, as the timer reads it from its connection."""

    @property
    def received(self) -> int:
        """Bytes of body so far."""

    @property
    def complete(self) -> bool:
        """Whether the answer is complete: no deadline applies any more."""

    @property
    def paused(self) -> bool:
        """Whether reading is paused. The engine is not idle then."""

    def wake(self) -> None:
        """Wake the task that waits for the answer."""


class DeadlineTimer:
    """The deadline of the exchange that is open on one connection."""

    __slots__ = (
        "_deadline",
        "_expires",
        "_interval",
        "_loop",
        "_progress",
        "_received",
        "_timer",
        "_timer_at",
        "_unchanged",
        "expired",
        "seconds",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, progress: Progress) -> None:
        self._loop = loop
        self._progress = progress
        self._expires = inf
        """When the present wait expires, in the loop's time."""
        self._deadline = inf
        """When the whole request expires."""
        self._interval = inf
        """Seconds between two checks of a relayed answer; `inf` while none is relayed."""
        self._received = self._unchanged = 0
        """Bytes of body at the last check, and checks since then without a change."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self.seconds = 0.0
        """The limit in force."""
        self.expired = False

    def set_timeout(self, seconds: float, deadline: float) -> None:
        """Expire `seconds` from now, or at `deadline`. `inf` never expires."""
        self.seconds = seconds
        self.expired = False
        self._interval = inf
        self._deadline = deadline
        expires = self._loop.time() + seconds
        self._expires = expires = expires if expires < deadline else deadline
        if expires < self._timer_at:  # otherwise the timer re-arms itself when it fires
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer()

    def watch_idle(self, idle: float, deadline: float) -> None:
        """Expire when no part of the answer arrives for `idle` seconds, or at `deadline`.

        The timer compares byte counts at intervals, so that a chunk costs nothing. It expires up to a quarter late.
        """
        self.set_timeout(idle / _CHECKS, deadline)
        self.seconds = idle
        self._interval = idle / _CHECKS
        self._received, self._unchanged = self._progress.received, 0

    def clear(self) -> None:
        """A new exchange begins: no deadline is set."""
        self.expired = False
        self._expires = inf

    def cancel(self) -> None:
        """The connection is closed."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def remaining(self) -> float:
        """Seconds until the present wait expires."""
        return self._expires - self._loop.time()

    @property
    def request_expired(self) -> bool:
        """Whether the whole request has expired, not only the present wait."""
        return self._loop.time() >= self._deadline - _TIMER_SECONDS

    def _is_idle(self) -> bool:
        progress = self._progress
        received, self._received = self._received, progress.received
        self._unchanged = 0 if progress.paused or self._received != received else self._unchanged + 1
        return self._unchanged >= _CHECKS or progress.complete

    def _set_timer(self) -> None:
        self._timer_at = self._expires
        self._timer = None if self._expires == inf else self._loop.call_at(self._expires, self._on_timer)

    def _on_timer(self) -> None:
        self.expired = self._expires == self._timer_at
        if self.expired and self._interval < inf and self._expires < self._deadline and not self._is_idle():
            self.expired = False
            self._expires = min(self._loop.time() + self._interval, self._deadline)
        if self.expired:
            self._expires = inf
            self._progress.wake()
        self._set_timer()
