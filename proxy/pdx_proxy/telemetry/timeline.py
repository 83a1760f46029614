"""The times and the legs of one request, recorded while it is served: for the metrics and the access log."""

from typing import Final

NEVER: Final = -1.0
"""The duration of a phase that has not happened."""


class Timeline:
    """One request's times and legs. Serving writes it; it is read when the request has ended."""

    __slots__ = ("failures", "first", "handoff", "legs", "prefill", "queued", "read", "sent", "stream", "to_prefill")

    def __init__(self) -> None:
        self.queued = 0.0
        """How long it waited in the queue, in seconds."""
        self.read = 0.0
        """When it was admitted and its body complete, in seconds of the gateway's clock; 0 until then."""
        self.sent = 0.0
        """When the last leg to a P was sent; 0 until then."""
        self.to_prefill = NEVER
        """Seconds from `read` until the first leg to a P was sent."""
        self.prefill = NEVER
        """Seconds from the last leg to a P until P's answer."""
        self.handoff = NEVER
        """Seconds from P's answer to the first event of D's; in push orders D's whole wait."""
        self.first = NEVER
        """Seconds from `read` to the first event of the answer, the wait in the queue included."""
        self.stream = False
        """Whether the answer is a stream."""
        self.legs: list[tuple[str, str]] = []
        """Endpoint and request ID of each leg, in the order of sending."""
        self.failures: list[str] = []
        """Why attempts failed, by the label of the metric."""
