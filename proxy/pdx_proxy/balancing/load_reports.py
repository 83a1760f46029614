"""The engines' own numbers about their load, for limits and the policy LeastLoad."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pdx_api.vllm_metrics import EngineMetrics
from pdx_proxy.balancing.engine_limits import EngineLimit


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What an engine's metrics report, summed over its data-parallel ranks."""

    running: float
    """Requests being computed."""
    waiting: float
    """Requests in its queue."""
    kv_use: float
    """Share of its KV blocks in use, 0 to 1; the average of the ranks."""
    cache_tokens: int = 0
    """Tokens that its KV cache has room for; 0: not reported."""
    cache_hits: float | None = None
    """Tokens of prompts that it has found in its prefix cache since its start; None: not reported."""
    decode_seconds: float = 0.0
    """The sum of the times between two tokens of an answer since its start; 0: not reported."""
    decode_tokens: float = 0.0
    """Tokens that it has generated since its start, without the first one of each answer."""
    answer_tokens: float = 0.0
    """Tokens of an answer, on average since its start; 0: none has ended."""

    @classmethod
    def of(cls, metrics: EngineMetrics) -> "LoadReport | None":
        """Return the load that an engine's metrics report; None unless they have all of it.

        vLLM observes one latency for each output of a step, which has several tokens with speculative decoding
        (v1/metrics/stats.py, `update_from_output`). Generated tokens include the first ones, latencies do not.
        """
        if metrics.running is None or metrics.waiting is None or metrics.kv_use is None:
            return None
        outputs, generated, ended = metrics.between_tokens, metrics.generated_tokens or 0.0, metrics.latency.count
        return cls(
            metrics.running,
            metrics.waiting,
            metrics.kv_use,
            metrics.cache_tokens,
            metrics.cache_hits,
            outputs.total,
            max(outputs.count, generated - metrics.first_token.count),
            generated / ended if ended else 0.0,
        )


@dataclass(frozen=True, slots=True)
class LoadReports:
    """The reports of all engines at one moment, none older than `engine_scraper.OLDEST_SECONDS`."""

    engines: Mapping[str, LoadReport] = field(default_factory=dict)
    """By name of the endpoint."""
    limits: Mapping[str, EngineLimit] = field(default_factory=dict)
    """What each engine can run, by name of the endpoint, from its reports so far."""
    silent: frozenset[str] = frozenset()
    """Warm endpoints that have no report."""
