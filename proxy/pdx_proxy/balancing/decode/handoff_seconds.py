"""How long a hand-off takes without its prefill, from the gateway's own histograms. Pure."""

from typing import Final

from pdx_proxy.telemetry.counters import Histogram

_KEPT: Final = 0.7
"""Weight of the earlier values in the average."""


class HandoffSeconds:
    """Owner of the average of the last seconds."""

    __slots__ = ("_handoffs", "_prefills", "seconds")

    def __init__(self) -> None:
        self._handoffs = (0, 0.0)
        self._prefills = (0, 0.0)
        self.seconds = 0.0
        """From P's answer to the first event of D's, on average; 0 before the first stream."""

    def update(self, handoffs: Histogram, prefills: Histogram, *, overlap: bool) -> None:
        """Read both phases again. `overlap`: a hand-off contains its prefill, as in push families."""
        before, self._handoffs = self._handoffs, (sum(handoffs.counts), handoffs.total)
        before_prefills, self._prefills = self._prefills, (sum(prefills.counts), prefills.total)
        found = _mean(before, self._handoffs)
        if found is None:
            return
        if overlap:
            found = max(0.0, found - (_mean(before_prefills, self._prefills) or 0.0))
        self.seconds = _KEPT * self.seconds + (1.0 - _KEPT) * found if self.seconds else found


def _mean(before: tuple[int, float], now: tuple[int, float]) -> float | None:
    count = now[0] - before[0]
    return (now[1] - before[1]) / count if count > 0 else None
