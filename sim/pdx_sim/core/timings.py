"""Durations of sequences and transfers, as vLLM's histograms."""

from collections.abc import Sequence as Values
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from pdx_sim.core.sequence import Sequence

LATENCY: Final = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
BETWEEN: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TRANSFER: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
_BYTES: Final = tuple(2 ** (10 + power) for power in range(1, 25, 2))


class Timings:
    """Owner of one engine's histograms; names, labels and buckets are vLLM's."""

    __slots__ = (
        *("_between", "_bytes", "_decode", "_first", "_kv_bytes_per_token"),
        *("_prefill", "_queue", "_registry", "_transfer", "_whole"),
    )

    def __init__(self, model: str, kv_bytes_per_token: int) -> None:
        self._kv_bytes_per_token = kv_bytes_per_token
        self._registry = CollectorRegistry()

        def histogram(name: str, text: str, buckets: Values[float]) -> Histogram:
            labels, registry = ["engine", "model_name"], self._registry
            return Histogram(f"vllm:{name}", text, labels, registry=registry, buckets=buckets).labels("0", model)

        self._first = histogram("time_to_first_token_seconds", "Arrival to first token.", FIRST)
        self._between = histogram("inter_token_latency_seconds", "Token to token.", BETWEEN)
        self._queue = histogram("request_queue_time_seconds", "Time spent in WAITING phase.", LATENCY)
        self._prefill = histogram("request_prefill_time_seconds", "Time spent in PREFILL phase.", LATENCY)
        self._decode = histogram("request_decode_time_seconds", "Time spent in DECODE phase.", LATENCY)
        self._whole = histogram("e2e_request_latency_seconds", "Arrival to end.", LATENCY)
        self._transfer = histogram("nixl_xfer_time_seconds", "Transfer duration of KV.", _TRANSFER)
        self._bytes = histogram("nixl_bytes_transferred", "Bytes of each transfer of KV.", _BYTES)

    def token(self, seq: Sequence, now: float) -> None:
        """A token was generated at `now`, on the engine's clock."""
        if seq.produced == 1:
            self._first.observe(now - seq.received_at)
            seq.first_at = now
        else:
            self._between.observe(now - seq.last_at)
        seq.last_at = now

    def finished(self, seq: Sequence, now: float) -> None:
        """A sequence has ended by itself."""
        self._queue.observe(seq.begun_at - seq.received_at)
        if seq.produced:
            self._prefill.observe(seq.first_at - seq.begun_at)
            self._decode.observe(seq.last_at - seq.first_at)
        self._whole.observe(now - seq.received_at)

    def moved(self, seconds: float, tokens: int) -> None:
        """The KV of this many tokens was read or written."""
        self._transfer.observe(seconds)
        self._bytes.observe(tokens * self._kv_bytes_per_token)

    def text(self) -> str:
        """All histograms in Prometheus' text format."""
        return generate_latest(self._registry).decode()
