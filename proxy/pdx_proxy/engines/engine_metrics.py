"""Reads the lines that PDX needs from an engine's metrics page of about 60 kB. Pure.

The names are those of vLLM's v1/metrics/loggers.py. An engine with data-parallel ranks has one line for each rank.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Final

from pdx_proxy.balancing.engine_limits import EngineSample
from pdx_proxy.balancing.load_reports import LoadReport

_RUNNING: Final = b"\nvllm:num_requests_running{"
_WAITING: Final = b"\nvllm:num_requests_waiting{"
_COMPLETED: Final = b"\nvllm:e2e_request_latency_seconds_count{"
_SECONDS: Final = b"\nvllm:e2e_request_latency_seconds_sum{"
_KV_USE: Final = b"\nvllm:kv_cache_usage_perc{"
_CAPACITY: Final = b'reason="capacity"'
_DEFERRED: Final = b'reason="deferred"'
_WAITING_BY_REASON: Final = b"\nvllm:num_requests_waiting_by_reason{"
_FINISHED: Final = b"\nvllm:request_success_total{"
_FIRST_TOKENS: Final = b"\nvllm:time_to_first_token_seconds_count{"
_ITL_COUNT: Final = b"\nvllm:inter_token_latency_seconds_count{"
_ITL_SECONDS: Final = b"\nvllm:inter_token_latency_seconds_sum{"
_PROMPTS: Final = b"\nvllm:prompt_tokens_total{"
_GENERATION: Final = b"\nvllm:generation_tokens_total{"
_PROMPT_TOKENS: Final = b"\nvllm:prompt_tokens_by_source_total{"
_REMOTE: Final = b'source="external_kv_transfer"'
_COMPUTED: Final = b'source="local_compute"'
_CACHE_HITS: Final = b"\nvllm:prefix_cache_hits_total{"
_CACHE_CONFIG: Final = b"\nvllm:cache_config_info{"
_CACHE_TOKENS: Final = re.compile(rb'\bkv_cache_size_tokens="(\d{1,15})"')
_CACHE_BLOCKS: Final = re.compile(rb'\bnum_gpu_blocks="(\d{1,12})"')
_CACHE_BLOCK_SIZE: Final = re.compile(rb'\bblock_size="(\d{1,6})"')


@dataclass(frozen=True, slots=True)
class Progress:
    """What shows whether an engine works on its requests."""

    running: float
    """Requests that are being computed. Those that wait for a slot or for KV do not run."""
    waiting: float
    kv_use: float
    prompt_tokens: float
    generation_tokens: float


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
    return LoadReport(
        sum(running),
        sum(waiting),
        sum(kv_use) / len(kv_use),
        read_cache_tokens(page),
        _cache_hits(page, labels),
        *_decoded(page, labels),
    )


def _decoded(page: bytes, labels: tuple[bytes, ...]) -> tuple[float, float, float]:
    """Read the seconds between tokens, these tokens, and the mean tokens of an answer.

    vLLM observes one latency for each output of a step, which has several tokens with speculative decoding
    (v1/metrics/stats.py, `update_from_output`). Generated tokens include the first ones, latencies do not.
    """
    names = (_ITL_SECONDS, _ITL_COUNT, _GENERATION, _FIRST_TOKENS, _COMPLETED)
    seconds, outputs, generated, first, completed = (sum(_finite(page, name, *labels)) for name in names)
    return seconds, max(outputs, generated - first), generated / completed if completed else 0.0


def _finite(page: bytes, prefix: bytes, *labels: bytes) -> Iterable[float]:
    return filter(isfinite, _values(page, prefix, *labels))


def _cache_hits(page: bytes, labels: tuple[bytes, ...]) -> float | None:
    hits = list(_values(page, _CACHE_HITS, *labels))
    return sum(hits) if hits and all(map(isfinite, hits)) else None


def read_cache_tokens(page: bytes) -> int:
    """Read how many tokens the KV cache of one rank of an engine has room for; 0 if that is not there.

    `kv_cache_size_tokens` is right for models with several kinds of layers, too (vLLM 0.32, config/cache.py). An engine
    without it has blocks and their size. Then the line of each rank has the blocks of all of them
    (v1/engine/core_client.py, `_apply_ready_response`).
    """
    lines = list(_lines(page, _CACHE_CONFIG))
    if not lines:
        return 0
    tokens = _CACHE_TOKENS.search(lines[0])
    if tokens is not None:
        return int(tokens[1])
    blocks, size = _CACHE_BLOCKS.search(lines[0]), _CACHE_BLOCK_SIZE.search(lines[0])
    return int(blocks[1]) * int(size[1]) // len(lines) if blocks is not None and size is not None else 0


def read_sample(page: bytes, load: LoadReport, at: float, rank: int | None = None) -> EngineSample:
    """Read what limits an engine needs besides its load. What the page does not have is 0.

    Requests that wait for their KV are in `num_requests_waiting` too, but they do not wait for capacity.
    """
    labels = _labels(rank)
    deferred, completed, seconds = (
        sum(_finite(page, name, *more, *labels))
        for name, more in ((_WAITING_BY_REASON, (_DEFERRED,)), (_COMPLETED, ()), (_SECONDS, ()))
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


def read_progress(page: bytes, rank: int | None = None) -> Progress | None:
    """Read the progress of an engine, or of one of its ranks; None unless the page has all of it.

    While a long prompt is prefilled in chunks, only the use of the KV cache changes from step to step: the tokens of a
    prompt are counted at its end, and a step without an output records no iteration (vLLM 0.32, `PrometheusStatLogger.
    record` and `AsyncLLM._run_output_handler`; measured, see docs/gateway.md).
    """
    labels = _labels(rank)
    names = (_RUNNING, _WAITING, _KV_USE, _PROMPTS, _GENERATION)
    values = [list(_values(page, name, *labels)) for name in names]
    if not all(values) or not all(isfinite(value) for each in values for value in each):
        return None
    return Progress(*map(sum, values))


def read_waiting(page: bytes, rank: int | None = None) -> Waiting | None:
    """Read the waiting requests of an engine, or of one of its ranks; None unless the page has both kinds."""
    labels = _labels(rank)
    capacity = list(_values(page, _WAITING_BY_REASON, _CAPACITY, *labels))
    deferred = list(_values(page, _WAITING_BY_REASON, _DEFERRED, *labels))
    if not (capacity and deferred) or not all(map(isfinite, (*capacity, *deferred))):
        return None
    return Waiting(sum(capacity), sum(deferred))


def read_finished(page: bytes, rank: int | None = None) -> float | None:
    """Read how many requests have ended since the engine started; None unless the page has it."""
    finished = list(_values(page, _FINISHED, *_labels(rank)))
    return sum(finished) if finished and all(map(isfinite, finished)) else None


def _labels(rank: int | None) -> tuple[bytes, ...]:
    return () if rank is None else (b'engine="%d"' % rank,)


def _values(page: bytes, prefix: bytes, *labels: bytes) -> Iterable[float]:
    """Yield the values of the lines that start with the prefix and have all labels; NaN for one that is no number."""
    for line in _lines(page, prefix):
        if all(label in line for label in labels):
            try:
                yield float(line.rpartition(b" ")[2])
            except ValueError:
                yield float("nan")


def _lines(page: bytes, prefix: bytes) -> Iterable[bytes]:
    at = page.find(prefix)
    while at >= 0:
        end = page.find(b"\n", at + 1)
        yield page[at : end if end >= 0 else len(page)]
        at = page.find(prefix, at + 1)
