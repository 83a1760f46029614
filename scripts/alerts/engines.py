"""Alerts about the split: the movement of KV, and the load of P and D."""

from typing import Final

from scripts.alerts.model import ONE, WHICH, Alert, Severity, mean, rate

_ARRIVED: Final = rate('vllm:prompt_tokens_by_source_total{pdx_dev_role="decode",source!="local_compute"}', "5m")
_PREFILLED: Final = rate('vllm:prompt_tokens_total{pdx_dev_role="prefill"}', "5m")
_EXPIRED: Final = f"sum by ({ONE}) (increase(vllm:nixl_num_kv_expired_reqs_total[10m]))"
_FINISHED: Final = rate('pdx_phase_seconds_count{phase="prefill"}', "5m")
_HANDOFF_BUCKETS: Final = rate('pdx_phase_seconds_bucket{phase="handoff"}', "5m", by=f"le, {ONE}")


_FULL: Final = {"prefill": 0.9, "decode": 0.95}
"""Share of the limit that an engine with all it can run has. An engine that could run more has a limit above that."""


def waiting(role: str, window: str = "5m") -> str:
    """Requests that wait for capacity, per running request, on the engines of a role."""
    queued = mean(f'vllm:num_requests_waiting_by_reason{{pdx_dev_role="{role}",reason="capacity"}}', window)
    running = mean(f'vllm:num_requests_running{{pdx_dev_role="{role}"}}', window)
    return f"{queued} / clamp_min({running}, 1)"


def cache(role: str, window: str = "5m") -> str:
    """The mean share of the KV cache in use on the engines of a role."""
    return f'avg by ({ONE}) (avg_over_time(vllm:kv_cache_usage_perc{{pdx_dev_role="{role}"}}[{window}]))'


def full(role: str, window: str = "5m") -> str:
    """Whether requests wait in the gateways' queues while the engines of a role have all that the gateways send them.

    A gateway sends an engine few more requests than it runs, so the engines' own queues stay short.
    """
    legs, limits = (
        f'avg_over_time({name}{{role="{role}"}}[{window}])' for name in ("pdx_legs_in_flight", "pdx_leg_limit")
    )
    share = f"sum by ({ONE}) ({legs} and {limits}) / sum by ({ONE}) ({limits})"  # an engine that leaves has no limit
    return f"({mean('pdx_requests_queued', window)} > 1 and {share} > {_FULL[role]})"


ALERTS: Final = (
    Alert(
        "PDXKVNotMoving",
        f"{_ARRIVED} / {_PREFILLED} < 0.5 and {_PREFILLED} > 10",
        "2m",
        Severity.CRITICAL,
        f"Decode engines of {WHICH} compute prompts that prefill engines have already computed.",
        "Only {{ $value | humanizePercentage }} of the prompt tokens that prefill engines computed reached decode "
        "engines, which compute the others again. The work of prefill engines is lost, and prefills slow down "
        "decoding.",
    ),
    Alert(
        "PDXTransferProbeFailing",
        f'max by ({ONE}) (pdx_transfer_probe_pairs{{verdict="broken"}}) > 0',
        "1m",
        Severity.CRITICAL,
        f"KV does not move between some engines of {WHICH}.",
        "Transfer probes failed in {{ $value | humanize }} pairs: the decode engine computed the prompt again, the "
        "hand-off failed, or the text differs.",
    ),
    Alert(
        "PDXKVPinnedTooLong",
        f"{_EXPIRED} > 3 or {mean('pdx_prefill_kv_pinned', '5m')} / clamp_min({_FINISHED}, 0.01) > 10",
        "2m",
        Severity.WARNING,
        f"Prefill engines of {WHICH} keep KV that no decode engine reads.",
        "KV stays on prefill engines for more than 10 s on average, or until its lease ends ({{ $value | humanize }}). "
        "Other prompts cannot use its blocks.",
    ),
    Alert(
        "PDXHandoffSlow",
        f"histogram_quantile(0.95, {_HANDOFF_BUCKETS}) > 2",
        "5m",
        Severity.WARNING,
        f"Hand-offs of {WHICH} are slow.",
        "5 % of requests wait {{ $value | humanizeDuration }} or more between the prefill engine's answer and the "
        "decode engine's first event, for the transfer of KV or in the decode engine's queue.",
    ),
    Alert(
        "PDXPrefillSaturated",
        f"{waiting('prefill')} > 1 or {full('prefill')}",
        "5m",
        Severity.WARNING,
        f"Prefill engines of {WHICH} are full.",
        "Requests wait for a prefill engine: in the gateway's queue, or in the engines' own queues. TTFT is high.",
    ),
    Alert(
        "PDXDecodeSaturated",
        f"{waiting('decode')} > 0.25 or {cache('decode')} > 0.95 or {full('decode')}",
        "5m",
        Severity.WARNING,
        f"Decode engines of {WHICH} are full.",
        "Requests wait for a decode engine, in the gateway's queue or in the engines' own queues, or the KV cache of "
        "decode engines is full. TTFT is high, and an engine with a full cache preempts running requests.",
    ),
    Alert(
        "PDXRatioWrong",
        f"({waiting('prefill', '15m')} > 1 or {full('prefill', '15m')}) and {waiting('decode', '15m')} < 0.05 "
        f"and {cache('decode', '15m')} < 0.5 unless {full('decode', '15m')}",
        "15m",
        Severity.WARNING,
        f"{WHICH} has too few prefill engines for its traffic.",
        "Requests wait for a prefill engine, and decode engines are half empty. Add prefill engines, or remove decode "
        "engines.",
        {"more": "prefill"},
    ),
    Alert(
        "PDXRatioWrong",
        f"({waiting('decode', '15m')} > 0.25 or {cache('decode', '15m')} > 0.95 or {full('decode', '15m')}) "
        f"and {waiting('prefill', '15m')} < 0.05 unless {full('prefill', '15m')}",
        "15m",
        Severity.WARNING,
        f"{WHICH} has too few decode engines for its traffic.",
        "Decode engines are full, and no request waits for a prefill engine. Add decode engines, or remove prefill "
        "engines.",
        {"more": "decode"},
    ),
)
