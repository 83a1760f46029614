"""The engines' own numbers about their load, for the policy LeastLoad."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What an engine's metrics report, summed over its data-parallel ranks."""

    running: float
    """Requests being computed."""
    waiting: float
    """Requests in its queue."""
    kv_use: float
    """Share of its KV blocks in use, 0 to 1; the average of the ranks."""


@dataclass(frozen=True, slots=True)
class LoadReports:
    """The reports of all engines at one moment, none older than `load_poller.OLDEST_SECONDS`."""

    engines: Mapping[str, LoadReport] = field(default_factory=dict)
    """By name of the endpoint. Empty unless a policy needs them."""
