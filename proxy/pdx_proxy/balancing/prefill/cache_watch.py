"""Whether an engine still has the blocks that its mirror has, from the engine's own count of cache hits. Pure.

A cache that is emptied (`/reset_prefix_cache`, sleep mode, a restart behind the same address) shows nowhere else.
"""

from typing import Final

from pdx_proxy.balancing.prefill.backlog import PrefillEngine

ENOUGH_TOKENS: Final = 8192
"""Expected hits that are compared at a time."""
_LEAST_SHARE: Final = 0.25
"""With a smaller share of the expected hits, the engine has lost its cache. Estimates of tokens are less wrong."""


class CacheWatch:
    """Compares the expected hits of one engine with its reports."""

    __slots__ = ("_expected", "_expected_before", "_hits")

    def __init__(self) -> None:
        self._hits: float | None = None
        """The engine's count when the present comparison began."""
        self._expected = 0
        """What was expected then."""
        self._expected_before = 0
        """What was expected at the last report. A later report includes it, whatever is under way."""

    def update(self, engine: PrefillEngine, hits: float) -> bool:
        """Read one more report; return whether the engine has lost its cache since the last comparison."""
        expected, self._expected_before = self._expected_before, engine.expected_hits
        if self._hits is None or hits < self._hits:
            lost = self._hits is not None
        elif expected - self._expected < ENOUGH_TOKENS:
            return False
        else:
            lost = hits - self._hits < _LEAST_SHARE * (expected - self._expected)
        self._hits, self._expected = hits, engine.expected_hits
        return lost
