"""When alerts fire and when they stay silent: series as promtool takes them, a value every 15 s."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_QWEN: Final = 'namespace="default",pdx_dev_deployment="qwen"'
_P: Final = f'{_QWEN},pdx_dev_role="prefill",pod="p-0"'
_D: Final = f'{_QWEN},pdx_dev_role="decode",pod="d-0"'
_LEAVING_P: Final = f'{_QWEN},endpoint="prefill-1",role="prefill"'
_OPERATOR: Final = 'namespace="pdx-system"'
_SOURCES: Final = "vllm:prompt_tokens_by_source_total"
_RECONCILES: Final = "pdx_operator_reconcile_seconds_count"


@dataclass(frozen=True)
class Case:
    """One situation: series with their values, and whether one alert fires."""

    alert: str
    situation: str
    fires: bool
    series: Mapping[str, str]
    minutes: int = 20
    """When Prometheus evaluates the rule."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the rule that separate it from others of its name."""


def waiting(role: str, value: str) -> str:
    """The series of requests that wait for capacity."""
    return f'vllm:num_requests_waiting_by_reason{{{role},reason="{value}"}}'


def engines(*, p: tuple[float, float], d: tuple[float, float], cache: float = 0.3) -> dict[str, str]:
    """Waiting and running requests of P and of D, and D's share of KV cache in use, for two hours."""
    values = {f"vllm:kv_cache_usage_perc{{{_D}}}": cache}
    for labels, (queued, running) in ((_P, p), (_D, d)):
        values[waiting(labels, "capacity")] = queued
        values[waiting(labels, "deferred")] = 3
        values[f"vllm:num_requests_running{{{labels}}}"] = running
    return {name: f"{value}x480" for name, value in values.items()}


def legs(*, p: tuple[float, float], d: tuple[float, float], queued: int = 20) -> dict[str, str]:
    """Legs of P and of D, each with the limit, and requests in the gateway's queue."""
    values = {f"pdx_requests_queued{{{_QWEN}}}": float(queued)}
    for role, (number, limit) in (("prefill", p), ("decode", d)):
        endpoint = f'{_QWEN},endpoint="{role}-0",role="{role}"'
        values |= {f"pdx_legs_in_flight{{{endpoint}}}": number, f"pdx_leg_limit{{{endpoint}}}": limit}
    return {name: f"{value}x480" for name, value in values.items()}


def tokens(prefilled: int, arrived: int) -> dict[str, str]:
    """Prompt tokens that P has computed and that D had from it, every 15 s."""
    return {
        f"vllm:prompt_tokens_total{{{_P}}}": f"0+{prefilled}x480",
        f'{_SOURCES}{{{_D},source="external_kv_transfer"}}': f"0+{arrived}x480",
        f'{_SOURCES}{{{_D},source="local_cache_hit"}}': "0x480",
        f'{_SOURCES}{{{_D},source="local_compute"}}': f"0+{max(0, prefilled - arrived)}x480",
    }


def pinned(now: int, finished: int, expired: float = 0) -> dict[str, str]:
    """Prefills whose KV is pinned; finished ones and ended leases every 15 s."""
    return {
        f'pdx_prefill_kv_pinned{{{_QWEN},endpoint="p-0"}}': f"{now}x480",
        f'pdx_phase_seconds_count{{{_QWEN},phase="prefill"}}': f"0+{finished}x480",
        f"vllm:nixl_num_kv_expired_reqs_total{{{_P}}}": f"0+{expired}x480",
    }


def transfer_probes(*, broken: int = 0, unprobed: int = 0) -> dict[str, str]:
    """Pairs by verdict, with two verified ones."""
    pairs = {"verified": 2, "broken": broken, "unknown": unprobed}
    return {f'pdx_transfer_probe_pairs{{{_QWEN},verdict="{name}"}}': f"{count}x480" for name, count in pairs.items()}


def handoffs(within_one: int, within_five: int) -> dict[str, str]:
    """Hand-offs of at most a second, and of at most five, every 15 s."""
    counts = {"1.0": within_one, "2.5": within_one, "5.0": within_five, "+Inf": within_five}
    name = "pdx_phase_seconds_bucket"
    return {f'{name}{{{_QWEN},phase="handoff",le="{le}"}}': f"0+{count}x480" for le, count in counts.items()}


def first_tokens(in_time: int, answered: int, shed: int = 0, internal: int = 0) -> dict[str, str]:
    """Streams answered in time, all streams answered, requests shed, and those answered 500; every 15 s, 8 hours."""
    return {
        f'pdx_phase_seconds_bucket{{{_QWEN},phase="first_token",le="2.5"}}': f"0+{in_time}x1920",
        f'pdx_phase_seconds_count{{{_QWEN},phase="first_token"}}': f"0+{answered}x1920",
        f'pdx_requests_total{{{_QWEN},outcome="shed"}}': f"0+{shed}x1920",
        f'pdx_requests_total{{{_QWEN},outcome="internal"}}': f"0+{internal}x1920",
    }


def ejections(reason: str, values: str) -> dict[str, str]:
    """Ejected endpoints, as two gateways report them."""
    return {f'pdx_ejections_total{{{_QWEN},pod="g-{n}",reason="{reason}"}}': values for n in (0, 1)}


def operator(ok: str, failed: str, behind: str = "0x480", build: str = "1x480") -> dict[str, str]:
    """Reconciles by result, unreconciled objects, and whether there is an operator."""
    return {
        f'{_RECONCILES}{{{_OPERATOR},result="ok"}}': ok,
        f'{_RECONCILES}{{{_OPERATOR},result="failed"}}': failed,
        f"pdx_operator_unreconciled_objects{{{_OPERATOR}}}": behind,
        f'pdx_operator_build_info{{{_OPERATOR},version="1"}}': build,
    }


_FAST: Final = {"burn": "fast"}
_SLOW: Final = {"burn": "slow"}
_MORE_P: Final = {"more": "prefill"}
_MORE_D: Final = {"more": "decode"}
_BURN: Final = "PDXFirstTokenBudgetBurn"
_NOT_RECONCILING: Final = "PDXOperatorNotReconciling"

CASES: Final = (
    Case("PDXKVNotMoving", "nothing arrives", True, tokens(3000, 0)),
    Case("PDXKVNotMoving", "a third arrives", True, tokens(3000, 1000)),
    Case("PDXKVNotMoving", "all arrives", False, tokens(3000, 2990)),
    Case("PDXKVNotMoving", "there is no traffic", False, tokens(0, 0)),
    Case("PDXTransferProbeFailing", "a pair is broken", True, transfer_probes(broken=1)),
    Case("PDXTransferProbeFailing", "pairs have no verdict yet", False, transfer_probes(unprobed=2)),
    Case("PDXKVPinnedTooLong", "leases end", True, pinned(0, 15, expired=1)),
    Case("PDXKVPinnedTooLong", "30 pinned at one prefill a second", True, pinned(30, 15)),
    Case("PDXKVPinnedTooLong", "pinned without any prefill", True, pinned(1, 0)),
    Case("PDXKVPinnedTooLong", "3 pinned at one prefill a second", False, pinned(3, 15)),
    Case("PDXKVPinnedTooLong", "idle", False, pinned(0, 0)),
    Case("PDXHandoffSlow", "a fifth over 2.5 s", True, handoffs(12, 15)),
    Case("PDXHandoffSlow", "all within a second", False, handoffs(15, 15)),
    Case("PDXPrefillSaturated", "9 wait for 4", True, engines(p=(9, 4), d=(0, 8))),
    Case("PDXPrefillSaturated", "2 wait for 4", False, engines(p=(2, 4), d=(9, 8))),
    Case("PDXPrefillSaturated", "P full, a queue", True, engines(p=(4, 4), d=(0, 8)) | legs(p=(8, 8), d=(8, 12))),
    Case("PDXPrefillSaturated", "P full, no queue", False, legs(p=(8, 8), d=(8, 12), queued=0)),
    Case("PDXPrefillSaturated", "a queue for D", False, engines(p=(0, 4), d=(0, 8)) | legs(p=(4, 8), d=(8, 8))),
    Case("PDXDecodeSaturated", "D full, a queue", True, engines(p=(0, 4), d=(1, 90)) | legs(p=(4, 8), d=(95, 95))),
    Case(
        "PDXPrefillSaturated",
        "engines that leave",
        False,
        engines(p=(0, 4), d=(0, 8)) | legs(p=(4, 8), d=(8, 8)) | {f"pdx_legs_in_flight{{{_LEAVING_P}}}": "8x480"},
    ),
    Case("PDXDecodeSaturated", "a queue for P", False, engines(p=(4, 4), d=(0, 90)) | legs(p=(8, 8), d=(90, 99))),
    Case("PDXDecodeSaturated", "4 wait for 8", True, engines(p=(0, 4), d=(4, 8))),
    Case("PDXDecodeSaturated", "the cache is full", True, engines(p=(0, 4), d=(0, 8), cache=0.97)),
    Case("PDXDecodeSaturated", "some wait for KV alone", False, engines(p=(9, 4), d=(1, 8))),
    Case("PDXRatioWrong", "P full, D empty", True, engines(p=(9, 4), d=(0, 8)), 35, _MORE_P),
    Case(
        *("PDXRatioWrong", "a queue for P alone", True),
        *(engines(p=(4, 4), d=(0, 8)) | legs(p=(8, 8), d=(8, 12)), 35, _MORE_P),
    ),
    Case(
        *("PDXRatioWrong", "a queue for both", False),
        *(engines(p=(4, 4), d=(0, 8)) | legs(p=(8, 8), d=(8, 8)), 35, _MORE_P),
    ),
    Case(
        *("PDXRatioWrong", "a queue for D alone", True),
        *(engines(p=(0, 4), d=(1, 90)) | legs(p=(4, 8), d=(95, 95)), 35, _MORE_D),
    ),
    Case(
        *("PDXRatioWrong", "a queue for both, seen from D", False),
        *(engines(p=(0, 4), d=(1, 90)) | legs(p=(8, 8), d=(95, 95)), 35, _MORE_D),
    ),
    Case("PDXRatioWrong", "both full", False, engines(p=(9, 4), d=(4, 8)), 35, _MORE_P),
    Case("PDXRatioWrong", "both at ease", False, engines(p=(1, 4), d=(0, 8)), 35, _MORE_P),
    Case("PDXRatioWrong", "D full, P empty", True, engines(p=(0, 1), d=(4, 8)), 35, _MORE_D),
    Case("PDXRatioWrong", "D's cache full, P empty", True, engines(p=(0, 1), d=(0, 8), cache=0.99), 35, _MORE_D),
    Case("PDXRatioWrong", "both full, seen from D", False, engines(p=(9, 4), d=(4, 8)), 35, _MORE_D),
    Case(_BURN, "a third is late", True, first_tokens(10, 15), 70, _FAST),
    Case(_BURN, "all is shed", True, first_tokens(0, 0, shed=15), 70, _FAST),
    Case(_BURN, "all is answered 500", True, first_tokens(0, 0, internal=15), 70, _FAST),
    Case(_BURN, "a tenth is late", False, first_tokens(90, 100), 70, _FAST),
    Case(_BURN, "a tenth is late for hours", True, first_tokens(90, 100), 420, _SLOW),
    Case(_BURN, "two of a hundred are late for hours", False, first_tokens(98, 100), 420, _SLOW),
    Case("PDXEndpointFlapping", "one a minute", True, ejections("lost", "0+0.25x480")),
    Case("PDXEndpointFlapping", "once", False, ejections("lost", "0x20 1x460")),
    Case("PDXEndpointFlapping", "the last one stays in use", False, ejections("overridden", "0+1x480")),
    Case(
        "PDXRolloutStuck", "since an hour and a half", True, {'pdx_operator_rollout_seconds{object="a/b"}': "5400x480"}
    ),
    Case("PDXRolloutStuck", "since ten minutes", False, {'pdx_operator_rollout_seconds{object="a/b"}': "600x480"}),
    Case(_NOT_RECONCILING, "specs wait", True, operator("0+1x480", "0x480", behind="1x480")),
    Case(_NOT_RECONCILING, "all reconciles fail", True, operator("5x480", "0+1x480")),
    Case(_NOT_RECONCILING, "it is gone", True, operator("5x20", "0x20", "0x20", "1x20")),
    Case(_NOT_RECONCILING, "some reconciles fail", False, operator("0+3x480", "0+1x480")),
    Case(_NOT_RECONCILING, "nothing happens", False, operator("5x480", "2x480")),
)
