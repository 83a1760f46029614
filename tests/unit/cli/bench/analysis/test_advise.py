"""The estimate from live metrics."""

import pytest

from pdx_api.vllm_metrics import Mean
from pdx_cli.bench.analysis.advise import LABEL, Live, advise
from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.bench.analysis.counters import EngineTotals
from pdx_cli.bench.analysis.steps import Slo

SLO = Slo(1.0, 0.03)


def engines(requests: int, prefill: float, latency: float, *, external: float = 0.0) -> EngineTotals:
    return EngineTotals(
        queue=Mean(0.1 * requests, requests),
        prefill=Mean(prefill * requests, requests),
        latency=Mean(latency * requests, requests),
        prompt_tokens=4000 * requests,
        external_tokens=external * 4000 * requests,
        generated_tokens=101 * requests,
    )


def split(prefill: int, decode: int, external: float = 1.0) -> Live:
    arm = Arm("x", split=True, prefill=prefill, decode=decode)
    return Live(arm, 100.0, engines(400, 0.3, 0.4), engines(400, 0.02, 2.12, external=external), running=20.0)


def test_a_ratio_at_which_rates_match() -> None:
    found = list(advise(split(1, 3), SLO))
    assert found[0] == LABEL
    assert "Seen: 4 req/s, prompts of 4000 tokens and answers of 101 on average." in found
    assert "The prefill engines were busy for 100 % of the time (300 ms a prompt)." in found
    assert "Rates match at about prefill:decode 3:1, instead of 1:3." in found
    assert "Aggregated on the same engines, TPOT would be about 29 ms instead of 20 ms and keeps the SLO." in found


def test_kv_that_does_not_move_comes_first() -> None:
    assert any("Only 50 % of the prompt tokens moved" in line for line in advise(split(2, 2, 0.5), SLO))


@pytest.mark.parametrize(("prefill", "part"), [(0.6, "and keeps the SLO"), (0.05, "splitting would change little")])
def test_an_aggregated_deployment(prefill: float, part: str) -> None:
    arm = Arm("x", aggregated=4)
    found = list(advise(Live(arm, 100.0, engines(400, prefill, 4.0 + prefill), EngineTotals(), 20.0), SLO))
    assert any(part in line for line in found)
    assert any(line.startswith("Rates would match at about prefill:decode") for line in found)


def test_too_little_traffic() -> None:
    arm = Arm("x", aggregated=4)
    found = list(advise(Live(arm, 10.0, engines(3, 0.5, 4.0), EngineTotals(), 1.0), SLO))
    assert len(found) == 2
    assert "Only 3 requests ended in 10 s" in found[1]
