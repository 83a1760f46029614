"""Counters of engines and gateways before and after a step, and what has grown between them. Pure.

A page of /metrics has 60 kB, and the generator's process reads it: only the lines that count are searched. Names are
those of vLLM 0.32 (v1/metrics/loggers.py, distributed/kv_transfer/kv_connector/v1/nixl/stats.py), and of PDX's gateway
(docs/observability.md).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Self

_EXTERNAL: Final = b'source="external_kv_transfer"'
_COMPUTED: Final = b'source="local_compute"'
_CACHED: Final = b'source="local_cache_hit"'
_CACHING: Final = re.compile(rb'\nvllm:cache_config_info\{[^}\n]*enable_prefix_caching="(True|False)"')


@dataclass(frozen=True, slots=True)
class Mean:
    """A sum of seconds, and of how many."""

    total: float = 0.0
    count: float = 0.0

    @property
    def mean(self) -> float | None:
        """Seconds of one; None without any."""
        return self.total / self.count if self.count > 0 else None

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.count + other.count)

    def __sub__(self, other: "Mean") -> "Mean":
        return Mean(self.total - other.total, self.count - other.count)


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Counters of one engine, or of the engines of one role, since their start or between two readings."""

    queue: Mean = Mean()
    """From an engine's receipt of a request until it runs. Of a D this includes the wait for KV."""
    prefill: Mean = Mean()
    """From then until its first token."""
    latency: Mean = Mean()
    """From the receipt to the last token."""
    transfer: Mean = Mean()
    """Of each transfer of KV."""
    transfer_bytes: float = 0.0
    prompt_tokens: float = 0.0
    """All tokens of prompts. The next three are parts of it."""
    computed_tokens: float = 0.0
    external_tokens: float = 0.0
    """Received through the KV connector."""
    cached_tokens: float = 0.0
    """From the engine's own prefix cache."""
    generated_tokens: float = 0.0
    preemptions: float = 0.0
    expired: float = 0.0
    """Prefills whose KV no D read in time."""
    failed_transfers: float = 0.0

    def __add__(self, other: "EngineTotals") -> "EngineTotals":
        return EngineTotals(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: "EngineTotals") -> "EngineTotals":
        return EngineTotals(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    @classmethod
    def sum(cls, each: Iterable[Self]) -> "EngineTotals":
        """Return the sum."""
        found = NOTHING
        for one in each:
            found = found + one
        return found


NOTHING: Final = EngineTotals()


@dataclass(frozen=True, slots=True)
class Load:
    """One engine at one moment."""

    running: float
    waiting: float


@dataclass(frozen=True, slots=True)
class GatewayTotals:
    """Phases of the gateways' requests. Each is counted only for the requests that had it."""

    phases: Mapping[str, Mean] = field(default_factory=dict)

    def __sub__(self, other: "GatewayTotals") -> "GatewayTotals":
        return GatewayTotals({name: value - other.phases.get(name, Mean()) for name, value in self.phases.items()})

    def __add__(self, other: "GatewayTotals") -> "GatewayTotals":
        names = {*self.phases, *other.phases}
        return GatewayTotals({n: self.phases.get(n, Mean()) + other.phases.get(n, Mean()) for n in names})


def read_engine(page: bytes) -> EngineTotals:
    """Read the counters of an engine, all data-parallel ranks together. What the page does not have is 0."""
    text = b"\n" + page
    sources = b"vllm:prompt_tokens_by_source_total"
    return EngineTotals(
        queue=_mean(text, b"vllm:request_queue_time_seconds"),
        prefill=_mean(text, b"vllm:request_prefill_time_seconds"),
        latency=_mean(text, b"vllm:e2e_request_latency_seconds"),
        transfer=_mean(text, b"vllm:nixl_xfer_time_seconds"),
        transfer_bytes=_sum(text, b"vllm:nixl_bytes_transferred_sum"),
        prompt_tokens=_sum(text, b"vllm:prompt_tokens_total"),
        computed_tokens=_sum(text, sources, _COMPUTED),
        external_tokens=_sum(text, sources, _EXTERNAL),
        cached_tokens=_sum(text, sources, _CACHED),
        generated_tokens=_sum(text, b"vllm:generation_tokens_total"),
        preemptions=_sum(text, b"vllm:num_preemptions_total"),
        expired=_sum(text, b"vllm:nixl_num_kv_expired_reqs_total"),
        failed_transfers=_sum(text, b"vllm:nixl_num_failed_transfers_total"),
    )


def read_load(page: bytes) -> Load:
    """Read the load of an engine. What the page does not have is 0."""
    text = b"\n" + page
    return Load(_sum(text, b"vllm:num_requests_running"), _sum(text, b"vllm:num_requests_waiting"))


def read_prefix_caching(page: bytes) -> bool | None:
    """Read whether an engine keeps prefixes; None if the page does not have it."""
    found = _CACHING.search(page)
    return found[1] == b"True" if found else None


def read_gateway(page: bytes) -> GatewayTotals:
    """Read the phases of a gateway."""
    text = b"\n" + page
    phases: dict[str, Mean] = {}
    for name in ("queue", "to_prefill", "prefill", "handoff", "first_token", "total"):
        label = b'phase="%s"' % name.encode()
        total, count = (_sum(text, b"pdx_phase_seconds_" + part, label) for part in (b"sum", b"count"))
        phases[name] = Mean(total, count)
    return GatewayTotals(phases)


def moved_share(decode: EngineTotals) -> float | None:
    """Return which share of the prompt tokens of D's came through the connector; None without prompts."""
    return decode.external_tokens / decode.prompt_tokens if decode.prompt_tokens else None


def as_numbers(totals: EngineTotals) -> dict[str, float | Mapping[str, float]]:
    """Return the counters for JSON."""
    values = {each.name: getattr(totals, each.name) for each in fields(totals)}
    return {
        name: {"sum": value.total, "count": value.count} if isinstance(value, Mean) else value
        for name, value in values.items()
    }


def _mean(page: bytes, name: bytes) -> Mean:
    return Mean(_sum(page, name + b"_sum"), _sum(page, name + b"_count"))


def _sum(page: bytes, name: bytes, label: bytes = b"") -> float:
    return sum(_values(page, name, label))


def _values(page: bytes, name: bytes, label: bytes = b"") -> Iterable[float]:
    at = page.find(b"\n" + name + b"{")
    while at >= 0:
        end = page.find(b"\n", at + 1)
        line = page[at : end if end >= 0 else len(page)]
        if label in line:
            try:
                yield float(line.rpartition(b" ")[2])
            except ValueError:
                yield 0.0
        at = page.find(b"\n" + name + b"{", at + 1)
