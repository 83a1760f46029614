"""The metrics page of a vLLM engine, read into one report. The only parser of vLLM's metrics. Pure.

A page has about 60 kB, mostly buckets of histograms. An engine with data-parallel ranks has one line for each rank.
A page is untrusted: every number that is read is finite and in a range, and the work for a page is bounded.
The names are those of vLLM 0.32: v1/metrics/loggers.py, and for transfers over NIXL
distributed/kv_transfer/kv_connector/v1/nixl/stats.py. Mooncake has metrics since vLLM 0.33: v1/mooncake/stats.py.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

MOST: Final = 1e12
"""The largest number of a metric, and of its sum over ranks: seconds, tokens or requests."""
MOST_BYTES: Final = 1e18
"""The same for bytes. An engine moves a terabyte of KV within hours."""
_LEAST: Final = 1e-9
"""A smaller number is 0, so that a quotient of two numbers is finite."""
_MOST_LINES: Final = 5_000
"""A page with more lines of these metrics has no report. An engine has about 50 of them for each rank."""
_MOST_CHARACTERS: Final = 1024 * 1024
"""The same for the characters of these lines: each is searched for every rank."""
_LINE_CHARACTERS: Final = 16 * 1024
_NUMBER_CHARACTERS: Final = 40
"""A longer line, or a longer number, is none. Python writes a number in at most 24 characters."""
_LABEL: Final = re.compile(r'\b(\w++)="([^"]*)"')
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_WAITING: Final = "num_requests_waiting_by_reason"
_COUNTERS: Final = (
    "cache_config_info",
    "external_prefix_cache_queries_total",
    "generation_tokens_total",
    "kv_cache_usage_perc",
    "mooncake_bytes_transferred_sum",
    "mooncake_num_failed_recvs_total",
    "mooncake_num_failed_transfers_total",
    "mooncake_num_kv_expired_reqs_total",
    "nixl_bytes_transferred_sum",
    "nixl_num_failed_transfers_total",
    "nixl_num_kv_expired_reqs_total",
    "num_preemptions_total",
    "num_requests_running",
    "num_requests_waiting",
    _WAITING,
    "prefix_cache_hits_total",
    "prompt_tokens_by_source_total",
    "prompt_tokens_total",
    "request_success_total",
)
_LARGEST: Final[Mapping[str, float]] = {
    "kv_cache_usage_perc": 1.0,
    "mooncake_bytes_transferred_sum": MOST_BYTES,
    "nixl_bytes_transferred_sum": MOST_BYTES,
}
"""The largest number of the metrics for which it is not `MOST`."""
_HISTOGRAMS: Final = (
    "e2e_request_latency_seconds",
    "inter_token_latency_seconds",
    "mooncake_xfer_time_seconds",
    "nixl_xfer_time_seconds",
    "request_prefill_time_seconds",
    "request_queue_time_seconds",
    "request_time_per_output_token_seconds",
    "time_to_first_token_seconds",
)


def _lines_of(*names: str) -> re.Pattern[bytes]:
    return re.compile(rb"\nvllm:(%b)\{([^\n]*)" % "|".join(names).encode())


_LINES: Final = _lines_of(*_COUNTERS, *(f"{name}_{part}" for name in _HISTOGRAMS for part in ("sum", "count")))
"""The lines that are read. A pattern that begins with literal bytes reads a page in half the time of a loop."""
_WAITING_LINES: Final = _lines_of(_WAITING)


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


NO_TIME: Final = Mean()


@dataclass(frozen=True, slots=True)
class Waiting:
    """The requests that wait in an engine, by what they wait for."""

    capacity: float
    """They wait for a free sequence or for free blocks: the queue."""
    deferred: float
    """They have their blocks and wait for KV, or for something else that is not the engine's capacity."""


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Prompt tokens that an engine has counted since its start, by source."""

    total: float
    external: float
    """Received through the KV connector."""
    computed: float
    cached: float = 0.0
    """Found in the engine's own prefix cache."""

    def __sub__(self, other: "PromptTokens") -> "PromptTokens":
        return PromptTokens(
            self.total - other.total,
            self.external - other.external,
            self.computed - other.computed,
            self.cached - other.cached,
        )


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """What an engine's metrics report, summed over its data-parallel ranks, or of one rank.

    A number is None if the page lacks the metric, or if one of its lines has no number from 0 to the largest one
    (`MOST`), or if their sum is larger. Counters count from the engine's start. A histogram that the page lacks is 0.
    """

    running: float | None = None
    """Requests that are being computed. Those that wait for a slot or for KV do not run."""
    waiting: float | None = None
    """All requests that wait, also those that wait for their KV."""
    waiting_by_reason: Waiting | None = None
    """The same by reason; None unless the page has both."""
    kv_use: float | None = None
    """Share of the KV blocks in use, 0 to 1; the average of the ranks."""
    ended: float | None = None
    """Requests that have ended, in whatever way."""
    prompt_tokens: float | None = None
    """Tokens of prompts. A prompt is counted at its end."""
    prompt_sources: PromptTokens | None = None
    """The same by source; None unless the page has what came through the connector."""
    generated_tokens: float | None = None
    cache_hits: float | None = None
    """Tokens of prompts that were in the prefix cache."""
    external_queries: float | None = None
    """Tokens of prompts for which the scheduler queried its connector: those that its own cache lacks."""
    preemptions: float | None = None
    cache_tokens: int = 0
    """Tokens that the KV cache of one rank has room for; 0: not reported."""
    cache_settings: Mapping[str, str] = field(default_factory=dict)
    """The settings of the KV cache, by the name of vLLM's field (config/cache.py)."""
    queue: Mean = NO_TIME
    """From an engine's receipt of a request until it runs. In a decode engine this includes the wait for KV."""
    prefill: Mean = NO_TIME
    """From then until its first token."""
    latency: Mean = NO_TIME
    """From the receipt to the last token."""
    first_token: Mean = NO_TIME
    """From the receipt to the first token."""
    between_tokens: Mean = NO_TIME
    """Between two outputs of a request. An output has several tokens with speculative decoding."""
    output_token: Mean = NO_TIME
    """For an output token: the mean of each request, or the same as `between_tokens` if an engine lacks this metric."""
    transfer: Mean = NO_TIME
    """Of each transfer of KV."""
    transfer_bytes: float | None = None
    expired: float | None = None
    """Prefills whose KV no decode engine read in time."""
    failed_transfers: float | None = None
    has_nixl: bool = False
    """Whether the transfers are those of NIXL."""


def read_metrics(page: bytes, rank: int | None = None) -> EngineMetrics:
    """Read the metrics of an engine, or of one of its ranks."""
    return read_ranks(page, (rank,))[0]


def read_ranks(page: bytes, ranks: Sequence[int | None]) -> list[EngineMetrics]:
    """Read the metrics of several ranks of one engine from its page."""
    lines = _find(_LINES, page)
    return [_Page(lines, _label(rank)).read() for rank in ranks]


def read_waiting(page: bytes, rank: int | None = None) -> Waiting | None:
    """Read the waiting requests of an engine, or of one of its ranks; None unless the page has both kinds."""
    return _Page(_find(_WAITING_LINES, page), _label(rank)).waiting()


def _find(pattern: re.Pattern[bytes], page: bytes) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    matches = list(islice(pattern.finditer(b"\n" + page), _MOST_LINES + 1))
    if len(matches) > _MOST_LINES:
        return lines
    if sum(match.end() - match.start() for match in matches) > _MOST_CHARACTERS:
        return lines
    for match in matches:
        line = match[2][: _LINE_CHARACTERS + 1].decode(errors="replace")
        lines.setdefault(match[1].decode(), []).append(line if len(line) <= _LINE_CHARACTERS else "")
    return lines


def _number(text: str, most: float) -> float:
    """Return the number of a line; raises ValueError for one that is not from 0 to `most`, as NaN is."""
    value = float(text) if len(text) <= _NUMBER_CHARACTERS else -1.0
    if not 0.0 <= value <= most:
        raise ValueError(text)
    return value if value >= _LEAST else 0.0


def _label(rank: int | None) -> str:
    return "" if rank is None else f'engine="{rank}"'


def whole_number(text: str | None) -> int | None:
    """Return the number that a setting has; None if it has none."""
    return int(text) if text and _NUMBER.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class _Page:
    """The lines of each metric from the brace on, by its name without `vllm:`."""

    lines: Mapping[str, Sequence[str]]
    label: str
    """Of the lines that count; empty: all."""

    def read(self) -> EngineMetrics:
        kv_use, settings = self._values("kv_cache_usage_perc"), self._cache_settings()
        return EngineMetrics(
            running=self._sum("num_requests_running"),
            waiting=self._sum("num_requests_waiting"),
            waiting_by_reason=self.waiting(),
            kv_use=sum(kv_use) / len(kv_use) if kv_use else None,
            ended=self._sum("request_success_total"),
            prompt_tokens=self._sum("prompt_tokens_total"),
            prompt_sources=self._prompt_sources("prompt_tokens_by_source_total"),
            generated_tokens=self._sum("generation_tokens_total"),
            cache_hits=self._sum("prefix_cache_hits_total"),
            external_queries=self._sum("external_prefix_cache_queries_total"),
            preemptions=self._sum("num_preemptions_total"),
            cache_tokens=self._cache_tokens(settings),
            cache_settings=settings,
            queue=self._mean("request_queue_time_seconds"),
            prefill=self._mean("request_prefill_time_seconds"),
            latency=self._mean("e2e_request_latency_seconds"),
            first_token=self._mean("time_to_first_token_seconds"),
            between_tokens=self._mean("inter_token_latency_seconds"),
            output_token=self._mean("request_time_per_output_token_seconds", "inter_token_latency_seconds"),
            transfer=self._mean("nixl_xfer_time_seconds", "mooncake_xfer_time_seconds"),
            transfer_bytes=self._total("nixl_bytes_transferred_sum", "mooncake_bytes_transferred_sum"),
            expired=self._total("nixl_num_kv_expired_reqs_total", "mooncake_num_kv_expired_reqs_total"),
            has_nixl="nixl_num_failed_transfers_total" in self.lines,
            failed_transfers=self._total(
                "nixl_num_failed_transfers_total",
                "mooncake_num_failed_transfers_total",
                "mooncake_num_failed_recvs_total",
            ),
        )

    def _values(self, name: str, label: str = "") -> list[float]:
        """Read the values of a metric; none if one of them is no number in range."""
        lines = self.lines.get(name, ())
        if "" in lines:  # too long to have a label
            return []
        most = _LARGEST.get(name, MOST)
        try:
            chosen = [line for line in lines if self.label in line and label in line]
            return [_number(line.rpartition(" ")[2], most) for line in chosen]
        except ValueError:
            return []

    def _sum(self, name: str, label: str = "") -> float | None:
        values = self._values(name, label)
        total = sum(values)
        return total if values and total <= _LARGEST.get(name, MOST) else None

    def _total(self, *names: str) -> float | None:
        """Add those of these metrics that the page has."""
        found = [value for name in names if (value := self._sum(name)) is not None]
        return total if found and (total := sum(found)) <= _LARGEST.get(names[0], MOST) else None

    def _mean(self, *names: str) -> Mean:
        """Read the first of these histograms that the page has."""
        name = next((name for name in names if f"{name}_count" in self.lines), names[0])
        return Mean(self._sum(f"{name}_sum") or 0.0, self._sum(f"{name}_count") or 0.0)

    def waiting(self) -> Waiting | None:
        """Read the waiting requests by reason; None unless the page has both kinds."""
        capacity, deferred = (self._sum(_WAITING, f'reason="{reason}"') for reason in ("capacity", "deferred"))
        return None if capacity is None or deferred is None else Waiting(capacity, deferred)

    def _prompt_sources(self, name: str) -> PromptTokens | None:
        sources = ("external_kv_transfer", "local_compute", "local_cache_hit")
        external, computed, cached = (self._sum(name, f'source="{source}"') for source in sources)
        total = self._sum(name)
        if total is None or external is None:
            return None
        return PromptTokens(total, external, computed or 0.0, cached or 0.0)

    def _cache_settings(self) -> dict[str, str]:
        """Read the settings of the first rank. Those of the others are equal."""
        return dict(_LABEL.findall(next(iter(self.lines.get("cache_config_info", ())), "")))

    def _cache_tokens(self, settings: Mapping[str, str]) -> int:
        """Return the size of the KV cache of one rank.

        `kv_cache_size_tokens` is right for models with several kinds of layers, too (vLLM 0.32, config/cache.py). An
        engine without it has blocks and their size. Then the line of each rank has the blocks of all of them
        (v1/engine/core_client.py, `_apply_ready_response`).
        """
        names = ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
        tokens, blocks, size = (whole_number(settings.get(name)) or 0 for name in names)
        tokens = tokens or blocks * size // max(1, len(self.lines.get("cache_config_info", ())))
        return tokens if tokens <= MOST else 0
