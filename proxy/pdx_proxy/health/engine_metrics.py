"""Reads the lines that PDX needs from an engine's metrics page of about 60 kB. Pure.

The names are those of vLLM's v1/metrics/loggers.py. An engine with data-parallel ranks has one line for each rank.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Final

from pdx_proxy.balancing.engine_limits import EngineSample
from pdx_proxy.balancing.load_reports import LoadReport

_RUNNING: Final = b"\nvllm:num_requests_running{"
_WAITING: Final = b"\nvllm:num_requests_waiting{"
_BY_REASON: Final = b"\nvllm:num_requests_waiting_by_reason{"
_DEFERRED: Final = b'reason="deferred"'
_COMPLETED: Final = b"\nvllm:e2e_request_latency_seconds_count{"
_SECONDS: Final = b"\nvllm:e2e_request_latency_seconds_sum{"
_KV_USE: Final = b"\nvllm:kv_cache_usage_perc{"
_PROMPT_TOKENS: Final = b"\nvllm:prompt_tokens_by_source_total{"
_REMOTE: Final = b'source="external_kv_transfer"'
_COMPUTED: Final = b'source="local_compute"'


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Prompt tokens that an engine has counted since its start, by source."""

    total: float
    remote: float
    """Received through the KV connector."""
    computed: float
    """Computed. The others were in the engine's own prefix cache."""


def read_load(page: bytes, rank: int | None = None) -> LoadReport | None:
    """Read the load of an engine, or of one of its ranks; None unless the page has all of it."""
    labels = _labels(rank)
    running, waiting, kv_use = (list(_values(page, name, *labels)) for name in (_RUNNING, _WAITING, _KV_USE))
    if not (running and waiting and kv_use) or not all(map(isfinite, (*running, *waiting, *kv_use))):
        return None
    return LoadReport(sum(running), sum(waiting), sum(kv_use) / len(kv_use))


def read_sample(page: bytes, load: LoadReport, at: float, rank: int | None = None) -> EngineSample:
    """Read what limits an engine needs besides its load. What the page does not have is 0.

    Requests that wait for their KV are in `num_requests_waiting` too, but they do not wait for capacity.
    """
    labels = _labels(rank)
    deferred, completed, seconds = (
        sum(value for value in _values(page, name, *more, *labels) if isfinite(value))
        for name, more in ((_BY_REASON, (_DEFERRED,)), (_COMPLETED, ()), (_SECONDS, ()))
    )
    waiting = max(0.0, load.waiting - deferred)
    return EngineSample(at, load.running, waiting, deferred, load.kv_use, completed, seconds)


def read_prompt_tokens(page: bytes, rank: int | None = None) -> PromptTokens | None:
    """Read the prompt tokens of an engine, or of one of its ranks; None unless the page has all of them."""
    labels = _labels(rank)
    total, remote = list(_values(page, _PROMPT_TOKENS, *labels)), list(_values(page, _PROMPT_TOKENS, _REMOTE, *labels))
    if not remote or not all(map(isfinite, total)):
        return None
    return PromptTokens(sum(total), sum(remote), sum(_values(page, _PROMPT_TOKENS, _COMPUTED, *labels)))


def _labels(rank: int | None) -> tuple[bytes, ...]:
    return () if rank is None else (b'engine="%d"' % rank,)


def _values(page: bytes, prefix: bytes, *labels: bytes) -> Iterable[float]:
    """Yield the values of the lines that start with the prefix and have all labels; NaN for one that is no number."""
    at = page.find(prefix)
    while at >= 0:
        end = page.find(b"\n", at + 1)
        line = page[at : end if end >= 0 else len(page)]
        if all(label in line for label in labels):
            try:
                yield float(line.rpartition(b" ")[2])
            except ValueError:
                yield float("nan")
        at = page.find(prefix, at + 1)
