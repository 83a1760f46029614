"""The engines' own numbers about their load, for limits and the policy LeastLoad."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class LoadReports:
    """The reports of all engines at one moment, none older than `load_poller.OLDEST_SECONDS`."""

    engines: Mapping[str, LoadReport] = field(default_factory=dict)
    """By name of the endpoint."""
    limits: Mapping[str, EngineLimit] = field(default_factory=dict)
    """What each engine can run, by name of the endpoint, from its reports so far."""
    silent: frozenset[str] = frozenset()
    """Endpoints that were polled and have no report."""
