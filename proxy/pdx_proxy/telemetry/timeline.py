"""The times and the legs of one request, recorded while it is served: for metrics, the access log and traces."""

from typing import Final

from pdx_proxy.config.settings import Address
from pdx_proxy.telemetry.trace_context import Trace

NEVER: Final = -1.0
"""The duration of a phase that has not happened."""


class LegRecord:
    """One leg of a request. Times are seconds of the gateway's clock."""

    __slots__ = ("address", "attempt", "ended", "endpoint", "failure", "prefill", "request_id", "sent", "span_id")

    def __init__(self, endpoint: str, address: Address, request_id: str, attempt: int, sent: float) -> None:
        self.endpoint = endpoint
        self.address = address
        self.request_id = request_id
        self.attempt = attempt
        """1 for the legs of the first attempt."""
        self.sent = sent
        """When it was sent; 0 if nothing needs the time."""
        self.ended = 0.0
        """When its answer was complete or its attempt failed; 0: with the request."""
        self.failure = ""
        """Why it failed, by the label of the metric."""
        self.prefill = False
        """Whether it is the leg of a P."""
        self.span_id = ""
        """Its span in its traceparent; empty if the request is not sampled."""


class SettlementRecord:
    """One settlement of a request, for its trace. Times are seconds of the gateway's clock."""

    __slots__ = ("began", "ended", "result", "span_id")

    def __init__(self, began: float, ended: float, result: str, span_id: str) -> None:
        self.began = began
        self.ended = ended
        self.result = result
        self.span_id = span_id
        """Empty if the request is not sampled."""


class Timeline:
    """One request's times and legs. Serving writes it; it is read when the request has ended."""

    __slots__ = (
        "attempt",
        "engine_text",
        "exported",
        "failures",
        "first",
        "handoff",
        "legs",
        "prefill",
        "queued",
        "read",
        "sent",
        "settlements",
        "status",
        "stream",
        "to_prefill",
        "trace",
    )

    def __init__(self) -> None:
        self.queued = 0.0
        """How long it waited in the queue, in seconds."""
        self.read = 0.0
        """When it was admitted and its body complete, in seconds of the gateway's clock; 0 until then.

        A wait in the queue moves it to the end of the wait.
        """
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
        self.status = 0
        """The status of the answer; 0 without one."""
        self.legs: list[LegRecord] = []
        """The legs in the order of sending."""
        self.attempt = 1
        """The number of the attempt under way."""
        self.failures: list[str] = []
        """Why attempts failed, by the label of the metric."""
        self.engine_text = ""
        """What the last 5xx of an engine says that is not JSON."""
        self.trace: Trace | None = None
        """Its trace; None while nothing is exported."""
        self.settlements: list[SettlementRecord] | None = None
        """The settlements that ended before the request did."""
        self.exported = -1
        """How many of its legs have been exported; -1: the request has not."""

    def end_attempt(self, failed: str, reason: str, now: float) -> None:
        """An attempt has failed: end its legs. `failed`: the endpoint that failed; empty: all of them."""
        self.attempt += 1
        for leg in self.legs:
            if not leg.ended:
                leg.ended = now
                if not failed or leg.endpoint == failed:
                    leg.failure = reason
