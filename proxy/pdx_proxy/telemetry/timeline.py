"""What one request goes through, noted while it is served: for the metrics, and for its line in the log."""

from typing import Final

NEVER: Final = -1.0
"""A duration of what has not happened."""


class Timeline:
    """One request's times and legs. Whoever serves the request writes it; it is read when the request has ended."""

    __slots__ = ("failures", "first", "handoff", "legs", "prefill", "queued", "read", "sent", "stream", "to_prefill")

    def __init__(self) -> None:
        self.queued = 0.0
        """How long it waited for its turn, in seconds."""
        self.read = 0.0
        """When it was admitted and read, in seconds of the gateway's clock; 0 until then."""
        self.sent = 0.0
        """When its last leg to a P was sent; 0 until then."""
        self.to_prefill = NEVER
        """How long it took, from then on, to send its first leg to a P, in seconds."""
        self.prefill = NEVER
        """How long its last P took, in seconds."""
        self.handoff = NEVER
        """From P's answer to the first event of D's; in push orders D's whole wait."""
        self.first = NEVER
        """From its last byte to the beginning of its answer, in seconds, the wait for its turn included."""
        self.stream = False
        """Whether a stream was asked for."""
        self.legs: list[tuple[str, str]] = []
        """The endpoints that were sent a leg, and under which id, in that order."""
        self.failures: list[str] = []
        """Why attempts failed, as the metrics call it."""
