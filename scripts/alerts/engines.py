"""Alerts about the split: KV, and what P and D can carry."""

from typing import Final

from scripts.alerts.model import ONE, WHICH, Alert, Severity, mean, rate

_ARRIVED: Final = rate('vllm:prompt_tokens_by_source_total{pdx_dev_role="decode",source!="local_compute"}', "5m")
_PREFILLED: Final = rate('vllm:prompt_tokens_total{pdx_dev_role="prefill"}', "5m")
_EXPIRED: Final = f"sum by ({ONE}) (increase(vllm:nixl_num_kv_expired_reqs_total[10m]))"
_FINISHED: Final = rate('pdx_phase_seconds_count{phase="prefill"}', "5m")
_HANDOFF_BUCKETS: Final = rate('pdx_phase_seconds_bucket{phase="handoff"}', "5m", by=f"le, {ONE}")


def waiting(role: str, window: str = "5m") -> str:
    """Requests that wait for capacity, for each that runs, on the engines of a role."""
    queued = mean(f'vllm:num_requests_waiting_by_reason{{pdx_dev_role="{role}",reason="capacity"}}', window)
    running = mean(f'vllm:num_requests_running{{pdx_dev_role="{role}"}}', window)
    return f"{queued} / clamp_min({running}, 1)"


def cache(role: str, window: str = "5m") -> str:
    """The mean share of the KV cache in use on the engines of a role."""
    return f'avg by ({ONE}) (avg_over_time(vllm:kv_cache_usage_perc{{pdx_dev_role="{role}"}}[{window}]))'


ALERTS: Final = (
    Alert(
        "PDXKVNotMoving",
        f"{_ARRIVED} / {_PREFILLED} < 0.5 and {_PREFILLED} > 10",
        "2m",
        Severity.CRITICAL,
        f"Decode engines of {WHICH} compute prompts that prefill engines have computed.",
        "Of the prompt tokens that P has computed only {{ $value | humanizePercentage }} reached D. D computes the "
        "rest again: prefill engines work for nothing, and decoding is disturbed by prefills.",
    ),
    Alert(
        "PDXTransferProbeFailing",
        f'max by ({ONE}) (pdx_transfer_probe_pairs{{verdict="broken"}}) > 0',
        "1m",
        Severity.CRITICAL,
        f"KV does not travel between some engines of {WHICH}.",
        "Prompts of the gateway's own, sent from P to D, were computed again, failed or gave another text, for "
        "{{ $value | humanize }} pairs.",
    ),
    Alert(
        "PDXKVPinnedTooLong",
        f"{_EXPIRED} > 3 or {mean('pdx_prefill_kv_pinned', '5m')} / clamp_min({_FINISHED}, 0.01) > 10",
        "2m",
        Severity.WARNING,
        f"Prefill engines of {WHICH} keep KV that no decode engine fetches.",
        "KV stays on P for more than 10 s on average, or until its lease ended ({{ $value | humanize }}). Its blocks "
        "are not there for other prompts.",
    ),
    Alert(
        "PDXHandoffSlow",
        f"histogram_quantile(0.95, {_HANDOFF_BUCKETS}) > 2",
        "5m",
        Severity.WARNING,
        f"Hand-offs of {WHICH} are slow.",
        "From P's answer to D's first event 5 % of requests wait {{ $value | humanizeDuration }} or more: the transfer "
        "of KV or D's queue.",
    ),
    Alert(
        "PDXPrefillSaturated",
        f"{waiting('prefill')} > 1",
        "5m",
        Severity.WARNING,
        f"Prefill engines of {WHICH} have more waiting than they work at.",
        "For each request that a prefill engine computes {{ $value | humanize }} wait. First tokens come late.",
    ),
    Alert(
        "PDXDecodeSaturated",
        f"{waiting('decode')} > 0.25 or {cache('decode')} > 0.95",
        "5m",
        Severity.WARNING,
        f"Decode engines of {WHICH} are full.",
        "Requests wait for a place in D's batch, or its KV cache is full ({{ $value | humanize }}): hand-offs become "
        "slow and running requests are preempted.",
    ),
    Alert(
        "PDXRatioWrong",
        f"{waiting('prefill', '15m')} > 1 and {waiting('decode', '15m')} < 0.05 and {cache('decode', '15m')} < 0.5",
        "15m",
        Severity.WARNING,
        f"{WHICH} has too few prefill engines for its traffic.",
        "Prefill engines have more waiting than they work at, and decode engines are half empty. More P or fewer D.",
        {"more": "prefill"},
    ),
    Alert(
        "PDXRatioWrong",
        f"({waiting('decode', '15m')} > 0.25 or {cache('decode', '15m')} > 0.95) "
        f"and {waiting('prefill', '15m')} < 0.05",
        "15m",
        Severity.WARNING,
        f"{WHICH} has too few decode engines for its traffic.",
        "Decode engines are full, and nothing waits for a prefill engine: more D or fewer P.",
        {"more": "decode"},
    ),
)
