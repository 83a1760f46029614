"""What the operator counts of itself, in Prometheus' text format."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Owner of the counters of one operator."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._turns = Histogram(
            "pdx_operator_reconcile_seconds",
            "How long a turn of an object's loop takes, by how it ended: ok, failed (tried again), or fault.",
            ["result"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._requests = Counter(
            "pdx_operator_api_requests",
            "Requests to the API server, by HTTP verb and status; code 0 where none came.",
            ["verb", "code"],
            registry=self._registry,
        )
        self._objects = Gauge(
            "pdx_operator_objects", "PDDeployments that the operator works on.", registry=self._registry
        )

    def count_objects(self, count: Callable[[], int]) -> None:
        """Have `count` called for the number of PDDeployments."""
        self._objects.set_function(count)

    def count_turn(self, result: str, seconds: float) -> None:
        """A turn ended."""
        self._turns.labels(result).observe(seconds)

    def count_request(self, verb: str, code: int) -> None:
        """A request was answered with a status; 0 when it was not."""
        self._requests.labels(verb, str(code)).inc()

    def render(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)
