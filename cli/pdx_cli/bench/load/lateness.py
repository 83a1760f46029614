"""How late the load generator is. A busy generator sends and reads late, which would count as the server's delay.

A timer that is due at any moment runs as late as an answer that arrives at this moment is read.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pdx_cli.bench.statistics import quantile

LIMIT: Final = 0.005
"""Seconds. A result is invalid if 1 % of the moments are later: TPOT has a resolution of some milliseconds."""
_PERIODS: Final = (0.0031, 0.0047, 0.0053, 0.0067)
"""Seconds between probes; periods that vary do not beat with the load's."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """The generator's own lateness in a step, in seconds."""

    p50: float = 0.0
    p99: float = 0.0
    most: float = 0.0
    samples: int = 0

    @property
    def is_limit(self) -> bool:
        """Whether the generator was the limit, so that the result says nothing about the server."""
        return self.p99 > LIMIT

    @classmethod
    def of(cls, seconds: list[float]) -> "Lateness":
        """Summarize samples."""
        ordered = sorted(max(0.0, each) for each in seconds)
        if not ordered:
            return cls()
        return cls(quantile(ordered, 0.5), quantile(ordered, 0.99), ordered[-1], len(ordered))


class Probe:
    """Sets timers and records how late they run. Call `stop` once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.samples: list[float] = []
        self._count = 0
        self._handle = self._arm()

    def _arm(self) -> asyncio.TimerHandle:
        self._count += 1
        period = _PERIODS[self._count % len(_PERIODS)]
        return self._loop.call_later(period, self._run, self._clock() + period)

    def _run(self, due: float) -> None:
        self.samples.append(self._clock() - due)
        self._handle = self._arm()

    def stop(self) -> None:
        """Set no more timers."""
        self._handle.cancel()
