"""One measurement of an engine's ITL: the progress of its streams, checked against the engine's own counters. Pure."""

from dataclasses import dataclass
from typing import Final

from pdx_proxy.balancing.decode.streams import StreamProgress
from pdx_proxy.balancing.load_reports import LoadReport

_AGREES: Final = 0.25
"""The progress of streams counts if it differs by less than this part from what the engine reports."""


class EngineCounts:
    """An engine's counters at one moment. Immutable by convention."""

    __slots__ = ("batch", "seconds", "tokens")

    def __init__(self, batch: float, report: LoadReport | None) -> None:
        self.batch = batch
        """Requests that ran."""
        self.seconds = report.decode_seconds if report is not None else 0.0
        """The sum of all times between two tokens."""
        self.tokens = report.decode_tokens if report is not None else 0.0
        """Tokens after the first of each answer."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What an engine showed between two reports."""

    batch: float
    itl: float
    tokens: float
    """How many tokens show it."""


def measured(progress: StreamProgress | None, before: EngineCounts | None, now: EngineCounts) -> Measurement | None:
    """Return what the time between two reports shows; None if no token passed.

    The engine's own counters are used where they contradict the streams: several events may come in one piece, a piece
    may have several tokens (speculative decoding), and the gateway itself may be late.
    """
    batch = now.batch if before is None else (before.batch + now.batch) / 2
    seen = progress.seconds / progress.tokens if progress is not None and progress.tokens > 0.0 else 0.0
    seconds, tokens = 0.0, 0.0
    if before is not None and now.tokens > before.tokens and now.seconds > before.seconds:
        seconds, tokens = now.seconds - before.seconds, now.tokens - before.tokens
    if tokens > 0.0:
        reported = seconds / tokens
        if not seen or abs(seen - reported) > _AGREES * reported:
            return Measurement(max(batch, 1.0), reported, tokens)
    if not seen or progress is None:
        return None
    return Measurement(max(batch, 1.0), seen, progress.tokens)
