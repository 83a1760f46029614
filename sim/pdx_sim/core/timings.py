"""Durations of sequences and transfers, as vLLM's histograms."""

from bisect import bisect_left
from collections.abc import Sequence as Values
from math import inf
from typing import Final

from prometheus_client.utils import floatToGoString

from pdx_sim.core.sequence import Sequence

LATENCY: Final = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
BETWEEN: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TRANSFER: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
_BYTES: Final = tuple(2 ** (10 + power) for power in range(1, 25, 2))


class _Histogram:
    """One of vLLM's histograms. Its lines are made once: engines are scraped more often than they serve."""

    __slots__ = ("_bounds", "_counts", "_head", "_lines", "_sum", "_sums")

    def __init__(self, name: str, text: str, bounds: Values[float], model: str) -> None:
        model = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self._bounds = (*bounds, inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self._head = f"# HELP {name} {text}\n# TYPE {name} histogram\n"
        limits = [floatToGoString(bound) for bound in self._bounds]  # type: ignore[no-untyped-call]
        self._lines = [f'{name}_bucket{{engine="0",le="{limit}",model_name="{model}"}}' for limit in limits]
        self._sums = tuple(f'{name}_{kind}{{engine="0",model_name="{model}"}}' for kind in ("count", "sum"))

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def text(self) -> str:
        count, lines = 0, []
        for line, more in zip(self._lines, self._counts, strict=True):
            count += more
            lines.append(f"{line} {float(count)}\n")
        counts, sums = self._sums
        return f"{self._head}{''.join(lines)}{counts} {float(count)}\n{sums} {self._sum}\n"


class Timings:
    """Owner of one engine's histograms; names, labels and buckets are vLLM's."""

    __slots__ = (
        *("_all", "_between", "_bytes", "_decode", "_first", "_kv_bytes_per_token"),
        *("_prefill", "_queue", "_transfer", "_whole"),
    )

    def __init__(self, model: str, kv_bytes_per_token: int, transfers: str) -> None:
        """`transfers`: how the names of the connector's histograms begin; empty: it has none."""
        self._kv_bytes_per_token = kv_bytes_per_token
        self._all: list[_Histogram] = []

        def histogram(name: str, text: str, buckets: Values[float]) -> _Histogram:
            self._all.append(_Histogram(f"vllm:{name}", text, buckets, model))
            return self._all[-1]

        self._first = histogram("time_to_first_token_seconds", "Arrival to first token.", FIRST)
        self._between = histogram("inter_token_latency_seconds", "Token to token.", BETWEEN)
        self._queue = histogram("request_queue_time_seconds", "Time spent in WAITING phase.", LATENCY)
        self._prefill = histogram("request_prefill_time_seconds", "Time spent in PREFILL phase.", LATENCY)
        self._decode = histogram("request_decode_time_seconds", "Time spent in DECODE phase.", LATENCY)
        self._whole = histogram("e2e_request_latency_seconds", "Arrival to end.", LATENCY)
        self._transfer = self._bytes = None
        if transfers:
            self._transfer = histogram(f"{transfers}_xfer_time_seconds", "Transfer duration of KV.", _TRANSFER)
            self._bytes = histogram(f"{transfers}_bytes_transferred", "Bytes of each transfer of KV.", _BYTES)

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
        if self._transfer is not None and self._bytes is not None:
            self._transfer.observe(seconds)
            self._bytes.observe(tokens * self._kv_bytes_per_token)

    def text(self) -> str:
        """All histograms in Prometheus' text format."""
        return "".join(each.text() for each in self._all)
