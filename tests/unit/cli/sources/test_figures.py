"""Two samples of gateways -> the figures of `pdx top`."""

import math
from typing import Any

import pytest

from pdx_api.vllm_metrics import EngineMetrics, Mean, PromptTokens
from pdx_cli.display.overview import _kv
from pdx_cli.sources.figures import Reading, Sample, figures, why_not_verified
from pdx_cli.sources.histograms import quantile, read_phases
from pdx_proxy.verification.verdict import finding_of

PAGE = """\
# TYPE pdx_phase_seconds histogram
pdx_phase_seconds_bucket{le="0.1",phase="prefill"} 2.0
pdx_phase_seconds_bucket{le="1.0",phase="prefill"} 4.0
pdx_phase_seconds_bucket{le="+Inf",phase="prefill"} 4.0
pdx_phase_seconds_count{phase="prefill"} 4.0
pdx_phase_seconds_sum{phase="prefill"} 1.0
"""


def endpoint(name: str, role: str, state: str = "Warm", **more: Any) -> dict[str, Any]:
    defaults = {"revision": "a", "connector": "NIXL", "order": "PrefillFirst", "reason": None, "inFlight": 1}
    return {"name": name, "role": role, "state": state, **defaults, **more}


def reading(name: str = "g", split: int = 0, verification: Any = None, phases: Any = None, **endpoints: Any) -> Reading:
    state = {
        "ready": True,
        "mode": "Disaggregated",
        "endpoints": endpoints.get("endpoints") or [endpoint("p", "prefill"), endpoint("d", "decode")],
        "inFlight": {"requests": 1, "queued": 0},
        "outcomes": {"split": split, "whole": 0},
        "retries": {"lost": split // 10},
    }
    return Reading(name, state, phases or {}, verification)


@pytest.mark.parametrize(
    ("buckets", "share", "value"),
    [
        ({0.1: 10, 1.0: 10, math.inf: 10}, 0.5, 0.05),
        ({0.1: 0, 1.0: 10, math.inf: 10}, 0.5, 0.55),
        ({0.1: 5, 1.0: 10, math.inf: 10}, 0.9, 0.82),
        ({0.1: 0, 1.0: 0, math.inf: 10}, 0.5, 1.0),
        ({0.1: 0, math.inf: 0}, 0.5, math.nan),
        ({}, 0.5, math.nan),
    ],
)
def test_a_quantile_lies_within_its_bucket(buckets: dict[float, float], share: float, value: float) -> None:
    assert quantile(buckets, share) == pytest.approx(value, nan_ok=True)


def test_phases_of_a_metrics_page() -> None:
    assert read_phases(PAGE) == {"prefill": {0.1: 2.0, 1.0: 4.0, math.inf: 4.0}}


def test_rates_and_percentiles_between_samples() -> None:
    then = {"prefill": {0.1: 100.0, 1.0: 100.0, math.inf: 100.0}}
    now = {"prefill": {0.1: 100.0, 1.0: 110.0, math.inf: 110.0}}
    shown = figures(Sample(10.0, (reading(split=50, phases=then),)), Sample(12.0, (reading(split=90, phases=now),)))
    assert shown.outcomes["split"] == (20.0, 90)
    assert shown.problems["retried: lost"] == (2.0, 9)
    (phase,) = shown.phases
    assert (phase.name, phase.rate) == ("prefill", 5.0)
    assert phase.quantiles[0] == pytest.approx(0.55), "the hundred before do not count"


def test_a_restarted_gateway_counts_from_zero() -> None:
    then = {"prefill": {0.1: 100.0, math.inf: 100.0}}
    now = {"prefill": {0.1: 4.0, math.inf: 4.0}}
    shown = figures(Sample(0.0, (reading(split=50, phases=then),)), Sample(2.0, (reading(split=4, phases=now),)))
    assert shown.outcomes["split"] == (2.0, 4)
    assert shown.phases[0].rate == 2.0


def test_a_new_gateway_has_no_rate() -> None:
    phases = {"prefill": {0.1: 4.0, math.inf: 4.0}}
    before = Sample(0.0, (reading("a", split=10, phases=phases),))
    now = Sample(2.0, (reading("a", split=14, phases=phases), reading("b", split=1000, phases=phases)))
    shown = figures(before, now)
    assert shown.outcomes["split"] == (2.0, 1014)
    assert shown.phases[0].rate == 0.0


def test_the_first_sample_has_no_figure_of_an_interval() -> None:
    load = EngineMetrics(
        prompt_tokens=9,
        generated_tokens=9,
        output_token=Mean(1.0, 10),
        prompt_sources=PromptTokens(1000, 500, 500),
    )
    now = reading(split=50, phases={"prefill": {0.1: 4.0, math.inf: 4.0}})
    shown = figures(None, Sample(0.0, (now,), loads={"d": load}))
    assert [math.isnan(value) for value in shown.phases[0].quantiles] == [True] * 3
    (found,) = (each.load for each in shown.endpoints if each.name == "d")
    assert (found.prompt_rate, found.output_rate, found.tpot, found.remote) == (None,) * 4


def test_several_gateways_are_summed() -> None:
    bad = [endpoint("p", "prefill", "Cold", reason="p: lost"), endpoint("d", "decode", inFlight=3)]
    shown = figures(None, Sample(0.0, (reading("a"), reading("b", endpoints=bad)), silent=("c: no answer",)))
    assert (shown.gateways, shown.ready, shown.in_flight["requests"]) == (3, 2, 2)
    assert [(e.name, e.state, e.reason, e.legs) for e in shown.endpoints] == [
        ("p", "Cold", "lost", 2),
        ("d", "Warm", "", 4),
    ]


@pytest.mark.parametrize(
    ("then", "now", "share"),
    [
        (PromptTokens(1000, 0, 1000), PromptTokens(2000, 900, 1100), 0.9),
        (PromptTokens(1000, 500, 500), PromptTokens(1000, 500, 500), None),
        (None, PromptTokens(1000, 250, 750), None),
        (PromptTokens(1000, 500, 500), PromptTokens(100, 100, 0), None),
        (None, PromptTokens(0, 0, 0), None),
        (None, None, None),
    ],
)
def test_remote_share(then: PromptTokens | None, now: PromptTokens | None, share: float | None) -> None:
    def sample(at: float, tokens: PromptTokens | None) -> Sample:
        return Sample(at, (reading(),), loads={"d": EngineMetrics(prompt_sources=tokens)} if tokens else {})

    shown = figures(sample(0.0, then), sample(1.0, now))
    assert {e.name: e.load.remote for e in shown.endpoints} == {"p": None, "d": share}


def verification(verdict: str, age: int | None, **finding: Any) -> dict[str, Any]:
    pair = {"prefill": "p", "decode": "d", "verdict": verdict, "ageSeconds": age, "tokens": 300, "outside": 288}
    more = {"cause": "PortsBlocked", "seen": "no token came"} if verdict == "broken" else {}
    return {"finding": {"verdict": verdict, **finding}, "pairs": [{**pair, **more, "seconds": {"prefill": 0.02}}]}


def test_the_gateway_that_probed_last_decides() -> None:
    older, newer = (
        verification("broken", 50, broken_pairs=1, possible=1),
        verification("verified", 3, pairs=1, possible=1),
    )
    shown = figures(None, Sample(0.0, (reading("a", verification=older), reading("b", verification=newer))))
    (pair,) = shown.pairs
    assert (pair.verdict, pair.remote, pair.age) == ("verified", 0.96, 3)
    assert shown.kv == "KV DOES NOT MOVE in 1 of 1 pair", "one gateway reports it broken"


@pytest.mark.parametrize("never_first", [True, False])
def test_a_gateway_whose_probes_proved_nothing_does_not_decide(never_first: bool) -> None:
    both = [
        reading("a", verification=verification("unknown", None)),
        reading("b", verification=verification("broken", 9)),
    ]
    (pair,) = figures(None, Sample(0.0, tuple(both if never_first else reversed(both)))).pairs
    assert (pair.verdict, pair.age) == ("broken", 9)


def test_a_pair_of_which_no_probe_proved_anything_has_no_age() -> None:
    (pair,) = figures(None, Sample(0.0, (reading("a", verification=verification("unknown", None)),))).pairs
    assert (pair.age, pair.stale) == (None, False)


def test_an_old_probe_is_stale() -> None:
    fresh = {**verification("verified", 79, pairs=1, possible=1), "seconds": 40}
    stale = {**verification("verified", 81, pairs=1, possible=1), "seconds": 40}
    assert figures(None, Sample(0.0, (reading(verification=fresh),))).unverified == ()
    (pair,) = figures(None, Sample(0.0, (reading(verification=stale),))).unverified
    assert pair.stale


@pytest.mark.parametrize(("age", "stale"), [(239, 0), (241, 9)])
def test_many_pairs_are_probed_one_after_another(age: int, stale: int) -> None:
    """In 40 s, three of nine pairs are probed, so that each is probed about every 120 s."""
    one = verification("verified", age, pairs=9, possible=9)
    pairs = [{**one["pairs"][0], "prefill": f"p{p}", "decode": f"d{d}"} for p in range(3) for d in range(3)]
    shown = figures(None, Sample(0.0, (reading(verification={**one, "pairs": pairs, "seconds": 40}),)))
    assert len(shown.unverified) == stale


def test_an_engine_that_hangs_is_unhealthy_before_the_gateway_ejects_it() -> None:
    shown = figures(None, Sample(0.0, (reading(),), unanswered={"p": "no answer within 1.5 s"}))
    (engine,) = shown.unhealthy
    assert (engine.name, engine.state, engine.silent) == ("p", "Warm", "no answer within 1.5 s")


def test_a_finding_that_kv_moves_is_no_claim_about_the_present() -> None:
    page = verification("verified", 3, pairs=1, possible=1)
    bad = [endpoint("p", "prefill", "Warming", reason="d: status 500"), endpoint("d", "decode")]
    shown = figures(
        None, Sample(0.0, (reading(verification=page, endpoints=bad),)), {"p": "prefill-0", "d": "decode-0"}
    )
    assert shown.kv == ""
    assert [each.is_verified for each in shown.pairs] == [False]
    assert shown.endpoints[0].reason == "decode-0: status 500", "in the names that the user knows"


def test_a_probe_before_a_restart_is_past() -> None:
    page = verification("verified", 3, pairs=1, possible=1)
    page["pairs"][0]["outdated"] = True
    (pair,) = figures(None, Sample(0.0, (reading(verification=page),))).unverified
    assert pair.outdated
    assert not pair.is_verified


@pytest.mark.parametrize(
    ("now", "recomputes"),
    [
        (PromptTokens(2000, 0, 1000), True),
        (PromptTokens(2000, 900, 1100), False),
        (PromptTokens(2000, 0, 100), False),
        (PromptTokens(1000, 0, 0), False),
    ],
)
def test_recomputed_prompts(now: PromptTokens, recomputes: bool) -> None:
    def sample(at: float, tokens: PromptTokens, split: int) -> Sample:
        load = EngineMetrics(prompt_sources=tokens, prompt_tokens=tokens.total, generated_tokens=0.0)
        return Sample(at, (reading(split=split),), loads={"d": load})

    shown = figures(sample(0.0, PromptTokens(1000, 0, 0), 10), sample(1.0, now, 20))
    assert shown.recomputes is recomputes


NO_PAIR = finding_of([], {}, None)


@pytest.mark.parametrize(
    ("endpoints", "kv"),
    [
        ([endpoint("p", "prefill", "Cold"), endpoint("d", "decode", "Cold")], "waiting until a prefill and a decode e"),
        (
            [endpoint("p", "prefill"), endpoint("d", "decode", "Warming")],
            "waiting until a prefill and a decode engine ",
        ),
        ([endpoint("p", "prefill"), endpoint("d", "decode")], "the first transfer probe has not ended yet"),
        ([endpoint("p", "prefill")], "there is no pair of a prefill and a decode engine to probe"),
        ([endpoint("d", "decode")], "there is no pair of a prefill and a decode engine to probe"),
        (
            [endpoint("p", "prefill"), endpoint("d", "decode", revision="b")],
            "there is no pair of a prefill and a decode",
        ),
    ],
)
def test_a_gateway_that_has_just_started_does_not_lack_pairs(endpoints: list[dict[str, Any]], kv: str) -> None:
    page = {"finding": NO_PAIR.as_json(), "pairs": []}
    shown = figures(None, Sample(0.0, (reading(verification=page, endpoints=endpoints),)))
    assert shown.kv.startswith(f"KV not verified: {kv}")
    state = {"mode": "Disaggregated", "kvTransfer": page["finding"], "endpoints": endpoints}
    assert _kv(state).startswith(f"KV: {kv}"), "pdx status"


def test_a_gateway_that_has_found_no_engines() -> None:
    assert why_not_verified(NO_PAIR.why, []) == "the gateway has found no engines"
    assert why_not_verified("transfer probes are disabled", []) == "transfer probes are disabled"


def test_aggregated_engines_have_no_kv_to_verify() -> None:
    page = {"finding": NO_PAIR.as_json(), "pairs": []}
    one = reading(verification=page, endpoints=[endpoint("a", "aggregated")])
    aggregated = Reading(one.name, {**one.state, "mode": "Aggregated"}, {}, page)
    assert figures(None, Sample(0.0, (aggregated,))).kv == ""


def test_a_failing_hand_off_is_short() -> None:
    page = verification("broken", 3, broken_pairs=1, possible=2)
    page["pairs"][0] |= {"cause": "HandoffFails", "seen": "the hand-off failed at d: status 500: Internal server error"}
    shown = figures(None, Sample(0.0, (reading(verification=page),)))
    assert shown.pairs[0].detail == "HandoffFails: decode engine: status 500: Internal server error"
    assert shown.kv == "KV DOES NOT MOVE in 1 of 2 pairs"
