"""The states of a PDDeployment in which alerts fire, as series: a state has a sample while it holds."""

from typing import Final

from pdx_cli.sources.experience import TAIL_TIMES
from scripts.alerts.model import ONE, Record, objects, rate, total

_PAST: Final = "1d"
"""What served within this time should serve now."""
_FEW: Final = 5
"""Fewer events than this show nothing."""
_FAILED: Final = 'pdx_requests_total{outcome=~"unavailable|broken|idle|expired|exhausted|internal"}'
_SHED: Final = 'pdx_requests_shed_total{reason=~"queue_full|queue_timeout|bytes"}'
_ASKED: Final = 'pdx_requests_total{outcome!~"refused|refused_by_engine|client_left"}'
_ANSWERED: Final = 'pdx_requests_total{outcome=~"split|whole"}'
_SERVERS: Final = 'pdx_endpoints{role=~"decode|aggregated",state="Warm"}'
_PREFILLS: Final = 'pdx_endpoints{role="prefill",state="Warm"}'
_AGGREGATED: Final = 'pdx_endpoints{role="aggregated",state="Warm"}'
_LOCAL: Final = 'pdx_local_prefills_total{reason=~"no_prefill|suspended|failed|no_kv"}'
_ARRIVED: Final = rate('vllm:prompt_tokens_by_source_total{pdx_dev_role="decode",source!="local_compute"}', "3m")
_COMPUTED: Final = rate('vllm:prompt_tokens_by_source_total{pdx_dev_role="decode",source="local_compute"}', "3m")
_PREFILLED: Final = rate('vllm:prompt_tokens_total{pdx_dev_role="prefill"}', "3m")
_BROKEN: Final = f'max by ({ONE}) (pdx_transfer_probe_pairs{{verdict="broken"}})'
_VERIFIED: Final = total('pdx_transfer_probe_pairs{verdict="verified"}')
_NEVER: Final = total('pdx_split{mode="Never"}')
_STUCK: Final = (
    f"({total('min_over_time(pdx_requests_in_flight[2m])')} > 1 and {rate('vllm:generation_tokens_total', '2m')} == 0 "
    f"unless {rate(_ANSWERED, '2m')} > 0)"
)
_EXIST: Final = (
    f'(count by ({ONE}) (up{{pdx_dev_role=~"prefill|decode|aggregated"}}) '
    f"or {objects('pdx_operator_object_condition')})"
)


def share(part: str, of: str, most: float, minutes: int, *, few: int = _FEW, before: str = "") -> str:
    """The share of some events among others over some minutes, while it is above `most`, and they are more than `few`.

    `before`: how long ago these minutes end.
    """
    window = f"{minutes}m"
    enough = f"{rate(part, window, before=before)} > {few / (60 * minutes):.3g}"
    return f"({rate(part, window, before=before)} / {rate(of, window, before=before)} > {most} and {enough})"


def gone(gauge: str) -> str:
    """Whether a gauge is 0 or absent, and was above 0 in the past."""
    before = total(f"max_over_time({gauge}[{_PAST}])")
    return f"({before} > 0 unless {total(gauge)} > 0)"


def broken_pairs() -> str:
    """The number of pairs within which KV does not move, if there are any."""
    return f"{_BROKEN} > 0"


_SERVES: Final = f"{total('pdx_build_info')} > 0"
"""A gateway runs: without one, the object may have been deleted."""

GATEWAY_DOWN: Final = Record("pdx:gateway_down", f"{gone('pdx_build_info')} and {_EXIST}")
UNAVAILABLE: Final = Record(
    "pdx:unavailable", f"({gone(_SERVERS)} and {_SERVES}) or {share(_FAILED, _ASKED, 0.75, 1)} or {_STUCK}"
)
# Few failures that go on. Those of one crash are in both parts for less than a minute.
FEW_ERRORS: Final = Record(
    "pdx:few_errors",
    f"{share(_FAILED, _ASKED, 0.02, 2, few=3)} and {share(_FAILED, _ASKED, 0.02, 2, few=3, before='2m')}",
)
_GO_ON: Final = f"max_over_time({FEW_ERRORS.name}[2m]) and {share(_FAILED, _ASKED, 0.01, 2)}"
ERRORS: Final = Record("pdx:errors", f"{share(_FAILED, _ASKED, 0.05, 2)} or ({_GO_ON})")
NOT_SPLITTING: Final = Record(
    "pdx:not_splitting",
    f"(({gone(_PREFILLS)} and {_SERVES}) "
    f"or ({broken_pairs()} unless {_VERIFIED} > 0) "
    f"or {share(_LOCAL, _ANSWERED, 0.5, 3)} "
    f"or ({_ARRIVED} / {_PREFILLED} < 0.5 and {_COMPUTED} / {_PREFILLED} > 0.5 and {_PREFILLED} > 10)) "
    f"unless {_NEVER} > 0 unless {total(_AGGREGATED)} > 0",
)


def _goal(objective: str, chart: Record, normal: Record, times: int, least: float) -> str:
    """The objective, else the chart's value, else some times the normal value, in seconds."""
    slo = f'max by ({ONE}) (pdx_slo_seconds{{objective="{objective}"}})'
    return f"{slo} or {chart.name} or clamp_min({times} * {normal.name}, {least})"


def _normal(metric: Record) -> str:
    """The median of a metric over a day, if it was measured for an hour. The group is evaluated every 30 s."""
    return f"quantile_over_time(0.5, {metric.name}[1d]) and count_over_time({metric.name}[1d]) >= 120"


def _chart(value: str) -> str:
    """A limit of the chart. The chart writes its value instead of what precedes the comment."""
    return f"max by ({ONE}) (pdx_build_info) * 0 > 0 # {value}"


_BUSY: Final = f"{rate('pdx_requests_total', '5m')} >= {20 / 60:.3g}"
_PHASE: Final = '{phase="first_token"}'
_TTFT: Final = Record(
    "pdx:first_token_seconds:p90",
    f"histogram_quantile(0.9, {rate(f'pdx_phase_seconds_bucket{_PHASE}', '5m', by=f'le, {ONE}')}) "
    f"and {rate(f'pdx_phase_seconds_count{_PHASE}', '5m')} > {1 / 60:.3g}",
)
_TTFT_MEAN: Final = Record(
    "pdx:first_token_seconds:mean",
    f"{rate(f'pdx_phase_seconds_sum{_PHASE}', '5m')} / ({rate(f'pdx_phase_seconds_count{_PHASE}', '5m')} > 0)",
)
_TTFT_BUSY: Final = Record("pdx:first_token_seconds:busy", f"{_TTFT.name} and {_BUSY}")
_TTFT_NORMAL: Final = Record("pdx:first_token_seconds:normal", _normal(_TTFT_BUSY))
_TTFT_CHART: Final = Record("pdx:first_token_seconds:chart", _chart("firstTokenSeconds"))
_TTFT_GOAL: Final = Record("pdx:first_token_seconds:limit", _goal("ttft", _TTFT_CHART, _TTFT_NORMAL, 4, 1.0))

_ITL: Final = 'vllm:inter_token_latency_seconds_{}{{pdx_dev_role=~"decode|aggregated"}}'
_ITL_COUNT: Final = rate(_ITL.format("count"), "3m", by=f"{ONE}, pod")
_TPOT: Final = Record(
    "pdx:token_seconds:mean",
    f"max by ({ONE}) ({rate(_ITL.format('sum'), '3m', by=f'{ONE}, pod')} / ({_ITL_COUNT} > 0.5))",
)
_TPOT_BUSY: Final = Record("pdx:token_seconds:busy", f"{_TPOT.name} and {_BUSY}")
_TPOT_NORMAL: Final = Record("pdx:token_seconds:normal", _normal(_TPOT_BUSY))
_TPOT_CHART: Final = Record("pdx:token_seconds:chart", _chart("tokenSeconds"))
_TPOT_GOAL: Final = Record("pdx:token_seconds:limit", _goal("tpot", _TPOT_CHART, _TPOT_NORMAL, 3, 0.05))

SLOW_TOKENS: Final = Record("pdx:slow_tokens", f"{_TPOT.name} > {_TPOT_GOAL.name}")
# Two bounds of the histogram differ by at most 2.5 times: a percentile alone could be above the limit by its
# interpolation, and a mean by one outlier.
SLOW_FIRST_TOKEN: Final = Record(
    "pdx:slow_first_token",
    f"({_TTFT.name} > {_TTFT_GOAL.name} and {_TTFT_MEAN.name} > {_TTFT_GOAL.name}) "
    f"or {_TTFT.name} > {TAIL_TIMES} * {_TTFT_GOAL.name} "
    f"or {share(_SHED, _ASKED, 0.05, 5)}",
)


def _condition(condition: str, holds: bool) -> str:
    """The series of objects whose condition has this value. A third value, Unknown, says that the spec is invalid."""
    return f'pdx_operator_object_condition{{condition="{condition}",status="{holds}"}}'


_AVAILABLE: Final = _condition("Available", True)

FLAPPING: Final = Record(
    "pdx:flapping",
    f'max by ({ONE}) (sum by ({ONE}, pod) (increase(pdx_ejections_total{{reason!="overridden"}}[15m]))) > 4',
)
NOT_AVAILABLE: Final = Record(
    "pdx:not_available",
    f"{objects(_condition('Available', False))} and {objects(f'max_over_time({_AVAILABLE}[{_PAST}])')}",
)
DEGRADED: Final = Record("pdx:degraded", objects(_condition("Degraded", True)))

STATES: Final = (
    *(GATEWAY_DOWN, UNAVAILABLE, FEW_ERRORS, ERRORS, NOT_SPLITTING),
    *(_TPOT, _TPOT_BUSY, _TPOT_NORMAL, _TPOT_CHART, _TPOT_GOAL, SLOW_TOKENS),
    *(_TTFT, _TTFT_MEAN, _TTFT_BUSY, _TTFT_NORMAL, _TTFT_CHART, _TTFT_GOAL, SLOW_FIRST_TOKEN),
    *(FLAPPING, NOT_AVAILABLE, DEGRADED),
)
"""In an order in which each uses only earlier ones."""
