"""How fast each engine's open streams progress, from the pieces that the gateway relays. Pure: times are arguments.

No stream is parsed, and no piece costs anything: twice, a second apart, the pieces of each open stream are counted. A
piece is mostly one event. Where several come in one piece, the engine's own metrics correct the result.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pdx_proxy.telemetry.counters import Relay

_MOST_STREAMS: Final = 4096
"""Streams that are compared at a time, so that a comparison takes at most about a millisecond."""


@dataclass(slots=True)
class StreamProgress:
    """What the streams of one engine have received between two comparisons."""

    seconds: float = 0.0
    """The sum over its streams of the time between the comparisons."""
    tokens: float = 0.0
    """Their pieces."""


class StreamMeter:
    """Owner of the last comparison."""

    __slots__ = ("_at", "_before")

    def __init__(self) -> None:
        self._at = 0.0
        self._before: dict[Relay, int] = {}

    def update(self, streams: Iterable[Relay], now: float) -> dict[str, StreamProgress]:
        """Compare the open streams with the last time. Only streams that were open then count."""
        seconds, before = now - self._at, self._before
        found: dict[str, StreamProgress] = {}
        current: dict[Relay, int] = {}
        for stream in streams:
            if stream.paused:
                continue
            if len(current) >= _MOST_STREAMS:
                break
            chunks = current[stream] = stream.relayed_chunks
            last = before.get(stream)
            if last is not None and chunks >= last:
                progress = found.get(stream.source)
                if progress is None:
                    progress = found[stream.source] = StreamProgress()
                progress.seconds += seconds
                progress.tokens += chunks - last
        self._at, self._before = now, current
        return found
