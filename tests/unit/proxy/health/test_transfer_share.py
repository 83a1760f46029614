"""The prompt tokens of the last half minute."""

from pdx_proxy.engines.engine_metrics import PromptTokens
from pdx_proxy.health.transfer_share import Counts, Recent, append, difference


def test_the_difference_of_the_last_few_counts() -> None:
    counts: Counts | None = None
    for prompt in range(0, 900, 100):
        counts = append(counts, PromptTokens(prompt, prompt / 2, prompt / 4))
    assert counts is not None
    assert difference(counts) == Recent(300, 150, 75)


def test_counters_that_fall_start_again() -> None:
    counts = append(append(None, PromptTokens(500.0, 500.0, 0.0)), PromptTokens(40.0, 0.0, 40.0))
    assert difference(counts) == Recent(0, 0, 0)
