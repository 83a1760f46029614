"""One step with the keys of other tools, so that programs that read the files of those tools can read it. Pure.

`vllm bench serve` of vLLM 0.32 (benchmarks/serve.py, `main_async`) and inference-perf 0.7.0 (reportgen/base.py,
`summarize_requests`). A key whose value is not measured is null.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from pdx_cli.bench.analysis.steps import Slo, counted
from pdx_cli.bench.load.records import Record
from pdx_cli.bench.statistics import Summary, mean, quantile

_PERCENTILES: Final = (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
"""Those of inference-perf."""


def as_vllm(records: Sequence[Record], slo: Slo, *, rate: float, model: str, date: str) -> dict[str, Any]:
    """Return the keys of `vllm bench serve --save-result --save-detailed`; times in ms where the key ends so.

    Rates are over the time until the last answer has ended, as in that tool.
    """
    found = counted(records)
    seconds = max(
        1e-9, max((each.ended for each in found), default=0.0) - min((each.sent for each in found), default=0)
    )
    whole = [each for each in found if each.failure is None]
    good = sum(map(slo.is_good, whole))
    prompts, outputs = sum(each.prompt_tokens for each in whole), sum(each.output_tokens for each in whole)
    times = {
        "ttft": [each.ttft for each in whole],
        "tpot": [each.tpot for each in whole if each.output_tokens > 1],
        "itl": [gap for each in whole for gap in each.gaps],
        "e2el": [each.latency for each in whole],
    }
    return {
        "date": date,
        "endpoint_type": "openai",
        "backend": "openai",
        "label": "pdx bench",
        "model_id": model,
        "tokenizer_id": None,
        "num_prompts": len(found),
        "request_rate": rate,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": seconds,
        "completed": len(whole),
        "failed": len(found) - len(whole),
        "total_input_tokens": prompts,
        "total_output_tokens": outputs,
        "request_throughput": len(whole) / seconds,
        "request_goodput": good / seconds,
        "output_throughput": outputs / seconds,
        "total_token_throughput": (prompts + outputs) / seconds,
        "input_lens": [each.prompt_tokens for each in found],
        "output_lens": [each.output_tokens for each in found],
        "ttfts": [max(0.0, each.ttft) for each in found],
        "itls": [list(each.gaps) for each in found],
        "latencies": [max(0.0, each.latency) if each.failure is None else 0.0 for each in found],
        "start_times": [each.sent for each in found],
        "queue_times": [0.0 for _ in found],
        "errors": [each.detail if each.failure else "" for each in found],
        "max_concurrent_requests": _most_open(found),
        **{key: value for name, values in times.items() for key, value in _milliseconds(name, values).items()},
    }


def as_inference_perf(records: Sequence[Record], slo: Slo, *, rate: float) -> dict[str, Any]:
    """Return the keys of inference-perf's `stage_N_lifecycle_metrics.json`, which its summary has too."""
    found = counted(records)
    whole = [each for each in found if each.failure is None]
    failed = [each for each in found if each.failure is not None]
    begin = min((each.sent for each in found), default=0.0)
    total = max((each.ended for each in found), default=0.0) - begin
    sending = max((each.sent for each in found), default=0.0) - begin
    prompts, outputs = sum(each.prompt_tokens for each in whole), sum(each.output_tokens for each in whole)

    def per_second(amount: float) -> float:
        return amount / total if total > 0 else 0.0

    return {
        "benchmark_time_seconds": total,
        "load_summary": {
            "count": len(found),
            "schedule_delay": _summary([each.lateness for each in found]),
            "send_duration": sending,
            "requested_rate": rate,
            "achieved_rate": len(found) / sending if sending > 0 else 0.0,
        },
        "successes": {
            "count": len(whole),
            "latency": _latency(whole),
            "throughput": {
                "input_tokens_per_sec": per_second(prompts),
                "output_tokens_per_sec": per_second(outputs),
                "total_tokens_per_sec": per_second(prompts + outputs),
                "requests_per_sec": per_second(len(whole)),
            },
            "prompt_len": _summary([each.prompt_tokens for each in whole]),
            "output_len": _summary([each.output_tokens for each in whole]),
            "goodput_metrics": _goodput(whole, slo, per_second),
        },
        "failures": {
            "count": len(failed),
            "request_latency": _summary([each.ended - each.sent for each in failed]),
            "by_label": {
                str(kind): sum(each.failure is kind for each in failed)
                for kind in dict.fromkeys(each.failure for each in failed)
            },
        },
    }


def _latency(whole: Sequence[Record]) -> dict[str, Any]:
    return {
        "request_latency": _summary([each.latency for each in whole]),
        "normalized_time_per_output_token": _summary(
            [each.latency / each.output_tokens for each in whole if each.output_tokens]
        ),
        "time_per_output_token": _summary([each.tpot for each in whole if each.output_tokens > 1]),
        "time_to_first_token": _summary([each.ttft for each in whole]),
        "inter_token_latency": _summary([gap for each in whole for gap in each.gaps]),
    }


def _goodput(whole: Sequence[Record], slo: Slo, per_second: Callable[[float], float]) -> dict[str, Any] | None:
    if not whole:
        return None
    good = [each for each in whole if slo.is_good(each)]
    return {
        "goodput_percentage": 100 * len(good) / len(whole),
        "request_goodput": per_second(len(good)),
        "token_goodput": per_second(sum(each.prompt_tokens + each.output_tokens for each in good)),
        "good_requests": len(good),
        "total_requests": len(whole),
        "ttft_attainment_percentage": 100 * mean([float(each.ttft <= slo.ttft) for each in whole]),
        "tpot_attainment_percentage": 100 * mean([float(each.tpot <= slo.tpot) for each in whole]),
    }


def _milliseconds(name: str, values: Sequence[float]) -> dict[str, float | None]:
    found = Summary.of(values)
    numbers = {
        f"mean_{name}_ms": found.mean,
        f"median_{name}_ms": found.p50,
        f"std_{name}_ms": found.std,
        f"p90_{name}_ms": found.p90,
        f"p99_{name}_ms": found.p99,
    }
    return {key: None if math.isnan(value) else 1000 * value for key, value in numbers.items()}


def _summary(values: Sequence[float]) -> dict[str, float] | None:
    """As inference-perf's `summarize`: mean, min, max and percentiles."""
    if not values:
        return None
    ordered = sorted(values)
    return {
        "mean": mean(ordered),
        "min": ordered[0],
        **{("median" if p == 50 else f"p{p:g}"): quantile(ordered, p / 100) for p in _PERCENTILES},
        "max": ordered[-1],
    }


def _most_open(records: Sequence[Record]) -> int:
    """The most requests that were open at a time."""
    changes = [(each.sent, 1) for each in records] + [(each.ended, -1) for each in records if each.ended >= 0]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
