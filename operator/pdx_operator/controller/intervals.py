"""How often a reconciler works."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Intervals:
    """Minimum delays of one object's reconciler, in seconds."""

    reconcile: float = 0.3
    """Between two reconciles of an unchanged spec: a burst of events causes one reconcile."""
    counts: float = 2.0
    """Before a status is written in which only counts differ; doubles with each such write, up to `counts_max`."""
    counts_max: float = 30.0
    inspect: float = 10.0
    """Before the pods of an unready object are listed; doubles up to `inspect_max` while nothing changes."""
    inspect_max: float = 60.0
    foreign: float = 30.0
    """Before the claim of another operator on an object is checked again."""
    retry: float = 0.5
    """Before a failed reconcile is repeated; doubles up to `retry_max`, and varies by half each time."""
    retry_max: float = 60.0
