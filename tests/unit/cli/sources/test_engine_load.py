"""The load of one engine between two samples."""

import pytest

from pdx_api.vllm_metrics import EngineMetrics, Mean, PromptTokens
from pdx_cli.sources.engine_load import LoadFigures, compared


def test_rates_between_two_samples() -> None:
    then = EngineMetrics(
        prompt_tokens=1000,
        generated_tokens=500,
        output_token=Mean(1.0, 10),
        prompt_sources=PromptTokens(1000, 0, 1000),
    )
    now = EngineMetrics(
        running=2,
        waiting=1,
        kv_use=0.5,
        prompt_tokens=1400,
        generated_tokens=600,
        output_token=Mean(1.4, 20),
        prompt_sources=PromptTokens(2000, 500, 1500),
    )
    figures = compared(then, now, 2.0)
    assert (figures.running, figures.waiting, figures.kv_usage) == (2, 1, 0.5)
    assert (figures.prompt_rate, figures.output_rate, figures.remote) == (200.0, 50.0, 0.5)
    assert figures.tpot == pytest.approx(0.04)
    assert compared(None, now, 2.0) == LoadFigures(running=2, waiting=1, kv_usage=0.5)
    assert compared(then, EngineMetrics(), 2.0) == LoadFigures(), "a page of another program"


def test_a_restarted_engine_has_no_rate() -> None:
    then, now = (EngineMetrics(prompt_tokens=p, generated_tokens=g) for p, g in ((1000, 500), (10, 5)))
    figures = compared(then, now, 2.0)
    assert (figures.prompt_rate, figures.output_rate) == (None, None)
    assert compared(None, None, 1.0) == LoadFigures()
