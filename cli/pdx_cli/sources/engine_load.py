"""The load of one engine, from vLLM's /metrics, and its figures between two samples. Pure.

Facts: names of metrics in vLLM 0.32 `vllm/v1/metrics/loggers.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from pdx_cli.sources.answers import COMPUTED, EXTERNAL, PROMPT_TOKENS
from pdx_cli.sources.observation import Tokens

RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
KV_USAGE: Final = "vllm:kv_cache_usage_perc"
PROMPT: Final = "vllm:prompt_tokens_total"
GENERATED: Final = "vllm:generation_tokens_total"
TPOT: Final = ("vllm:request_time_per_output_token_seconds", "vllm:inter_token_latency_seconds")
"""The first that an engine has: the mean of each request, or each interval by itself."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of one engine at one moment. Counters count from the engine's start."""

    running: float | None = None
    """Requests in its batch; None if the page does not have it, as with the next two."""
    waiting: float | None = None
    kv_usage: float | None = None
    """Share of its KV blocks in use, 0 to 1."""
    prompt: float = 0.0
    """Counter of prompt tokens."""
    generated: float = 0.0
    """Counter of output tokens."""
    token_seconds: tuple[float, float] = (0.0, 0.0)
    """Sum and count of the seconds for each output token."""
    tokens: Tokens | None = None
    """Prompt tokens by source."""


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """The load of one engine between two samples. None: unknown."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    prompt_rate: float | None = None
    """Prompt tokens per second, including those that came through the connector or from a cache."""
    output_rate: float | None = None
    """Output tokens per second."""
    tpot: float | None = None
    """Mean seconds for one output token."""
    remote: float | None = None
    """Share of its prompt tokens that came through the connector, 0 to 1."""
    recomputes: bool = False
    """Whether no KV arrived for its prompts between the samples, and it computed most of their tokens."""


@dataclass(slots=True)
class _Sums:
    values: dict[str, float] = field(default_factory=dict)
    sources: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        self.values[name] = self.values.get(name, 0.0) + value
        if name == PROMPT_TOKENS:
            source = labels.get("source", "")
            self.sources[source] = self.sources.get(source, 0.0) + value


def read_load(page: str, rank: int | None = None) -> EngineLoad | None:
    """Return the load on a page of /metrics, of one data-parallel rank or of all; None if the page is not readable."""
    sums = _Sums()
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples if family.name.startswith("vllm:") else ():
                if not sample.name.endswith("_bucket") and (rank is None or _is_rank(sample.labels, rank)):
                    sums.add(sample.name, sample.labels, sample.value)
    except ValueError:
        return None
    found, by_source = sums.values, sums.sources
    tpot = next((name for name in TPOT if f"{name}_count" in found), TPOT[0])
    split = Tokens(sum(by_source.values()), by_source.get(EXTERNAL, 0.0), by_source.get(COMPUTED, 0.0))
    return EngineLoad(
        running=found.get(RUNNING),
        waiting=found.get(WAITING),
        kv_usage=found.get(KV_USAGE),
        prompt=found.get(PROMPT, 0.0),
        generated=found.get(GENERATED, 0.0),
        token_seconds=(found.get(f"{tpot}_sum", 0.0), found.get(f"{tpot}_count", 0.0)),
        tokens=split if by_source else None,
    )


def compared(then: EngineLoad | None, now: EngineLoad | None, seconds: float) -> LoadFigures:
    """Return the figures between two samples that are `seconds` apart; without the first, there are no rates."""
    if now is None:
        return LoadFigures()
    rates: dict[str, Any] = {}
    if then is not None and seconds > 0 and now.prompt >= then.prompt and now.generated >= then.generated:
        rates["prompt_rate"] = (now.prompt - then.prompt) / seconds
        rates["output_rate"] = (now.generated - then.generated) / seconds
    return LoadFigures(
        running=_whole(now.running),
        waiting=_whole(now.waiting),
        kv_usage=now.kv_usage,
        tpot=_mean(then.token_seconds, now.token_seconds) if then else None,
        remote=remote_share(then.tokens if then else None, now.tokens),
        recomputes=_recomputes(then.tokens if then else None, now.tokens),
        **rates,
    )


def remote_share(then: Tokens | None, now: Tokens | None) -> float | None:
    """Return the share between the samples; None if the engine had no prompt between them, or has restarted."""
    if then is None or now is None or now.prompt <= then.prompt:
        return None
    return (now.external - then.external) / (now.prompt - then.prompt)


def _recomputes(then: Tokens | None, now: Tokens | None) -> bool:
    """Whether it had prompts between the samples, none of whose KV arrived, and computed most of their tokens."""
    if then is None or now is None or now.prompt <= then.prompt or now.external != then.external:
        return False
    return now.computed - then.computed > (now.prompt - then.prompt) / 2


def _mean(then: tuple[float, float], now: tuple[float, float]) -> float | None:
    """Return the mean between the samples; None if nothing was counted."""
    count = now[1] - then[1]
    return (now[0] - then[0]) / count if count > 0 else None


def _whole(value: float | None) -> int | None:
    return None if value is None or math.isnan(value) else int(value)


def _is_rank(labels: Mapping[str, str], rank: int) -> bool:
    return labels.get("engine", str(rank)) == str(rank)
