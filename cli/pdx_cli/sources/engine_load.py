"""The load of one engine between two samples of its metrics. Pure."""

from dataclasses import dataclass

from pdx_api.vllm_metrics import EngineMetrics, PromptTokens


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


def compared(then: EngineMetrics | None, now: EngineMetrics | None, seconds: float) -> LoadFigures:
    """Return the figures between two samples that are `seconds` apart; without the first, there are no rates."""
    if now is None:
        return LoadFigures()
    before = then or EngineMetrics()
    prompt = _growth(before.prompt_tokens, now.prompt_tokens)
    output = _growth(before.generated_tokens, now.generated_tokens)
    measured = seconds > 0 and prompt is not None and output is not None
    return LoadFigures(
        running=None if now.running is None else int(now.running),
        waiting=None if now.waiting is None else int(now.waiting),
        kv_usage=now.kv_use,
        prompt_rate=prompt / seconds if measured and prompt is not None else None,
        output_rate=output / seconds if measured and output is not None else None,
        tpot=(now.output_token - then.output_token).mean if then else None,
        remote=remote_share(before.prompt_sources, now.prompt_sources),
        recomputes=_recomputes(before.prompt_sources, now.prompt_sources),
    )


def _growth(then: float | None, now: float | None) -> float | None:
    """Return by how much a counter has grown; None if the engine has restarted, or if a sample lacks it."""
    return None if then is None or now is None or now < then else now - then


def remote_share(then: PromptTokens | None, now: PromptTokens | None) -> float | None:
    """Return the share between the samples; None if the engine had no prompt between them, or has restarted."""
    if then is None or now is None or now.total <= then.total:
        return None
    return (now - then).external / (now - then).total


def _recomputes(then: PromptTokens | None, now: PromptTokens | None) -> bool:
    """Whether it had prompts between the samples, none of whose KV arrived, and computed most of their tokens."""
    if then is None or now is None or now.total <= then.total or now.external != then.external:
        return False
    return (now - then).computed > (now - then).total / 2
