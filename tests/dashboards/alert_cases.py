"""When alerts fire and when they stay silent: series as promtool takes them, a value every 15 s."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_QWEN: Final = 'namespace="default",pdx_dev_deployment="qwen"'
_P: Final = f'{_QWEN},pdx_dev_role="prefill",pod="p-0"'
_D: Final = f'{_QWEN},pdx_dev_role="decode",pod="d-0"'
_OPERATOR: Final = 'namespace="pdx-system"'
_SOURCES: Final = "vllm:prompt_tokens_by_source_total"
_RECONCILES: Final = "pdx_operator_reconcile_seconds_count"
_ALL: Final = 3 * 240
"""Samples of three hours."""
_BEFORE: Final = 2 * 240
"""Samples of two hours: what is normal."""
Series = Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """One situation: series with their values, and whether one alert fires."""

    alert: str
    situation: str
    fires: bool
    series: Series
    minutes: int = 20
    """When Prometheus evaluates the rule."""


def endpoints(p: str = "2x720", d: str = "2x720", gateway: str = "1x720") -> dict[str, str]:
    """Warm engines by role, and a gateway that answers."""
    return {
        f"pdx_build_info{{{_QWEN}}}": gateway,
        f'up{{{_QWEN},pdx_dev_role="decode"}}': "1x720",
        f'pdx_endpoints{{{_QWEN},role="prefill",state="Warm"}}': p,
        f'pdx_endpoints{{{_QWEN},role="decode",state="Warm"}}': d,
    }


def requests(**outcomes: str) -> dict[str, str]:
    """Requests by how they ended."""
    usual = {"split": "0x480", "whole": "0x480", "unavailable": "0x480", "internal": "0x480"} | outcomes
    return {f'pdx_requests_total{{{_QWEN},outcome="{name}"}}': values for name, values in usual.items()}


def waves(low: int, high: int) -> str:
    """A counter that grows slowly for a minute, and then fast for one, again and again."""
    value, values = 0, ["0"]
    for sample in range(480):
        value += high if sample // 4 % 2 else low
        values.append(str(value))
    return " ".join(values)


def hanging(tokens: str) -> dict[str, str]:
    """Four open requests, and the tokens that engines have generated."""
    return {f"pdx_requests_in_flight{{{_QWEN}}}": "4x480", f"vllm:generation_tokens_total{{{_D}}}": tokens}


def local(**reasons: str) -> dict[str, str]:
    """Requests that could be split, but that a decode engine prefilled."""
    return {f'pdx_local_prefills_total{{{_QWEN},reason="{name}"}}': values for name, values in reasons.items()}


def tokens(prefilled: int, arrived: int) -> dict[str, str]:
    """Prompt tokens that P has computed and that D had from it, every 15 s."""
    return {
        f"vllm:prompt_tokens_total{{{_P}}}": f"0+{prefilled}x480",
        f'{_SOURCES}{{{_D},source="external_kv_transfer"}}': f"0+{arrived}x480",
        f'{_SOURCES}{{{_D},source="local_compute"}}': f"0+{max(0, prefilled - arrived)}x480",
    }


def pairs(*, verified: int = 2, broken: int = 0, unknown: int = 0) -> dict[str, str]:
    """Pairs by verdict."""
    found = {"verified": verified, "broken": broken, "unknown": unknown}
    return {f'pdx_transfer_probe_pairs{{{_QWEN},verdict="{name}"}}': f"{count}x480" for name, count in found.items()}


def split(mode: str) -> dict[str, str]:
    """The setting `routing.split`."""
    return {f'pdx_split{{{_QWEN},mode="{name}"}}': f"{int(name == mode)}x480" for name in ("Auto", "Never")}


def slo(objective: str, seconds: float) -> dict[str, str]:
    """An objective of the spec."""
    return {f'pdx_slo_seconds{{{_QWEN},objective="{objective}"}}': f"{seconds}x{_ALL}"}


def steps(usual: float, now: float) -> str:
    """A counter that grows in one way for two hours, and then in another one."""
    return f"0+{usual}x{_BEFORE} {usual * _BEFORE + now}+{now}x{_ALL - _BEFORE}"


def per_token(usual: float, now: float, *, rate: int = 600) -> dict[str, str]:
    """Tokens of a decode engine every 15 s, with the seconds of one for two hours and after them; and requests."""
    name = "vllm:inter_token_latency_seconds"
    return {
        f"{name}_sum{{{_D}}}": steps(usual * rate, now * rate),
        f"{name}_count{{{_D}}}": f"0+{rate}x{_ALL}",
        f'pdx_requests_total{{{_QWEN},outcome="split"}}': f"0+{rate // 60}x{_ALL}",
    }


def first_tokens(usual: float, now: float, *, rate: int = 10) -> dict[str, str]:
    """Streams every 15 s, with the seconds until their first token for two hours and after them."""
    name, phase = "pdx_phase_seconds", f'{_QWEN},phase="first_token"'
    bounds = ("0.5", "1.0", "2.5", "5.0", "10.0", "30.0", "+Inf")
    within = {le: (rate * (usual <= float(le)), rate * (now <= float(le))) for le in bounds}
    return {
        **{f'{name}_bucket{{{phase},le="{le}"}}': steps(*counts) for le, counts in within.items()},
        f"{name}_sum{{{phase}}}": steps(usual * rate, now * rate),
        f"{name}_count{{{phase}}}": f"0+{rate}x{_ALL}",
        f'pdx_requests_total{{{_QWEN},outcome="split"}}': f"0+{rate}x{_ALL}",
    }


def sheds(number: int, **reasons: int) -> dict[str, str]:
    """Requests every 15 s, and those of them that are shed."""
    shed = sum(reasons.values())
    return {
        **requests(split=f"0+{number - shed}x480", shed=f"0+{shed}x480"),
        **{f'pdx_requests_shed_total{{{_QWEN},reason="{name}"}}': f"0+{n}x480" for name, n in reasons.items()},
    }


def ejections(reason: str, values: str) -> dict[str, str]:
    """Ejected endpoints, as two gateways report them."""
    return {f'pdx_ejections_total{{{_QWEN},pod="g-{n}",reason="{reason}"}}': values for n in (0, 1)}


def condition(name: str, *statuses: tuple[str, str]) -> dict[str, str]:
    """A condition of the object, as the operator reports it: statuses with their values."""
    labels = f'{_OPERATOR},object="default/qwen",condition="{name}"'
    return {f'pdx_operator_object_condition{{{labels},status="{status}"}}': values for status, values in statuses}


def rollout(seconds: int) -> dict[str, str]:
    """The age of a rollout."""
    return {f'pdx_operator_rollout_seconds{{{_OPERATOR},object="default/qwen"}}': f"{seconds}x480"}


def operator(ok: str, failed: str, behind: str = "0x480", build: str = "1x480") -> dict[str, str]:
    """Reconciles by result, unreconciled objects, and whether there is an operator."""
    return {
        f'{_RECONCILES}{{{_OPERATOR},result="ok"}}': ok,
        f'{_RECONCILES}{{{_OPERATOR},result="failed"}}': failed,
        f"pdx_operator_unreconciled_objects{{{_OPERATOR}}}": behind,
        f'pdx_operator_build_info{{{_OPERATOR},version="1"}}': build,
    }


_DOWN: Final = endpoints(gateway="1x40 _x440")
_NO_D: Final = endpoints(d="2x40 0x440")
_NO_P: Final = endpoints(p="2x40 0x440")
_LATE: Final = 2 * 60 + 15
"""Minutes: a quarter of an hour after the change of `steps`."""
_NOT_AVAILABLE: Final = condition("Available", ("True", "1x40 _x440"), ("False", "_x40 1x440"))
_UNKNOWN: Final = condition("Available", ("True", "1x40 _x440"), ("Unknown", "_x40 1x440"))
_DEGRADED: Final = condition("Degraded", ("True", "1x480"))
_SLOW: Final = slo("ttft", 2.0)
_NOT_RECONCILING: Final = "PDXOperatorNotReconciling"

CASES: Final = (
    Case("PDXGatewayDown", "the only gateway is gone", True, _DOWN),
    Case("PDXGatewayDown", "the gateway answers", False, endpoints()),
    Case("PDXGatewayDown", "the object is deleted", False, {f"pdx_build_info{{{_QWEN}}}": "1x40 _x440"}),
    Case(
        *("PDXGatewayDown", "all pods are gone, and the object exists", True),
        {f"pdx_build_info{{{_QWEN}}}": "1x40 _x440", **condition("Available", ("False", "1x480"))},
    ),
    Case(
        "PDXUnavailable",
        "the object is deleted",
        False,
        endpoints(gateway="1x40 _x440", p="1x40 _x440", d="2x40 _x440"),
    ),
    Case(
        "PDXUnavailable",
        "no engine generates, and embeddings are answered",
        False,
        endpoints() | hanging("7x480") | requests(whole="0+9x480"),
    ),
    Case("PDXUnavailable", "no decode engine is warm", True, _NO_D),
    Case("PDXUnavailable", "decode engines are gone", True, endpoints(d="2x40 _x440")),
    Case("PDXUnavailable", "most requests fail", True, endpoints() | requests(whole="0+1x480", unavailable="0+9x480")),
    Case("PDXUnavailable", "six of ten fail", False, endpoints() | requests(whole="0+4x480", unavailable="0+6x480")),
    Case("PDXUnavailable", "all requests hang", True, endpoints() | hanging("7x480")),
    Case("PDXUnavailable", "requests get tokens", False, endpoints() | hanging("0+50x480")),
    Case("PDXUnavailable", "the first engines load", False, endpoints(p="0x480", d="0x480")),
    Case("PDXUnavailable", "the gateway is gone", False, _DOWN | requests(unavailable="0+6x480")),
    Case("PDXUnavailable", "two requests fail", False, endpoints() | requests(unavailable="0x40 2x440")),
    Case("PDXErrors", "a tenth fails", True, endpoints() | requests(split="0+90x480", internal="0+10x480")),
    Case("PDXErrors", "one of a hundred fails", False, endpoints() | requests(split="0+99x480", internal="0+1x480")),
    Case("PDXErrors", "three of a hundred fail", True, endpoints() | requests(split="0+97x480", internal="0+3x480"), 9),
    Case(
        *("PDXErrors", "about three quarters fail, now more, now fewer", True),
        endpoints() | requests(split="0+5x480", unavailable=waves(10, 20)),
    ),
    Case(
        *("PDXErrors", "a crash breaks some streams once", False),
        *(endpoints() | requests(split="0+30x480", broken="0x60 20 40x420"), 19),
    ),
    Case(
        *("PDXErrors", "a fifth failed for a minute and a half, and none since", False),
        *(endpoints() | requests(split="0+30x480", internal="0x60 9 18 27 36 45 54x420"), 19),
    ),
    Case("PDXErrors", "all fail", False, endpoints() | requests(unavailable="0+10x480")),
    Case("PDXErrors", "clients are wrong", False, endpoints() | requests(split="0+50x480", refused="0+50x480")),
    Case("PDXNotSplitting", "no prefill engine is warm", True, _NO_P),
    Case("PDXNotSplitting", "all pairs are broken", True, endpoints() | pairs(verified=0, broken=4)),
    Case(
        *("PDXNotSplitting", "most hand-offs fail", True),
        endpoints() | requests(split="0+4x480", whole="0+6x480") | local(failed="0+6x480"),
    ),
    Case("PDXNotSplitting", "KV does not arrive", True, endpoints() | tokens(3000, 0)),
    Case("PDXNotSplitting", "KV arrives", False, endpoints() | tokens(3000, 2990) | pairs()),
    Case("PDXNotSplitting", "there is no traffic", False, endpoints() | tokens(0, 0) | pairs(verified=0, unknown=4)),
    Case("PDXNotSplitting", "splitting is off", False, _NO_P | split("Never")),
    Case("PDXNotSplitting", "the setting is Auto", True, _NO_P | split("Auto")),
    Case("PDXNotSplitting", "short prompts", False, endpoints() | requests(split="0+1x480", whole="0+60x480")),
    Case("PDXNotSplitting", "no engine answers at all", False, endpoints(p="2x40 0x440", d="2x40 0x440")),
    Case(
        *("PDXNotSplitting", "the mode is Aggregated now", False),
        _NO_P | {f'pdx_endpoints{{{_QWEN},role="aggregated",state="Warm"}}': "_x40 2x440"},
    ),
    Case("PDXSlowTokens", "above the objective", True, endpoints() | per_token(0.08, 0.08) | slo("tpot", 0.05)),
    Case("PDXSlowTokens", "below the objective", False, endpoints() | per_token(0.04, 0.04) | slo("tpot", 0.05)),
    Case("PDXSlowTokens", "four times the normal value", True, endpoints() | per_token(0.02, 0.08), _LATE),
    Case("PDXSlowTokens", "twice the normal value", False, endpoints() | per_token(0.04, 0.08), _LATE),
    Case("PDXSlowTokens", "fast all the same", False, endpoints() | per_token(0.004, 0.03), _LATE),
    Case("PDXSlowTokens", "nothing is normal yet", False, endpoints() | per_token(0.02, 0.02)),
    Case(
        *("PDXSlowTokens", "the objective comes before the normal value", False),
        *(endpoints() | per_token(0.02, 0.08) | slo("tpot", 0.1), _LATE),
    ),
    Case("PDXSlowTokens", "there was little traffic", False, endpoints() | per_token(0.02, 0.2, rate=120), _LATE),
    Case("PDXSlowFirstToken", "above the objective", True, endpoints() | first_tokens(3, 3) | _SLOW),
    Case("PDXSlowFirstToken", "a bound is above the objective", False, endpoints() | first_tokens(1.5, 1.5) | _SLOW),
    Case("PDXSlowFirstToken", "ten times the normal value", True, endpoints() | first_tokens(0.4, 8), _LATE),
    Case("PDXSlowFirstToken", "fast all the same", False, endpoints() | first_tokens(0.1, 0.9), _LATE),
    Case("PDXSlowFirstToken", "a tenth is shed", True, endpoints() | sheds(100, queue_full=10)),
    Case("PDXSlowFirstToken", "one client has its limit", False, endpoints() | sheds(100, client_limit=50)),
    Case(
        *("PDXSlowFirstToken", "tokens are slow, too", False),
        endpoints() | first_tokens(3, 3) | per_token(0.08, 0.08) | _SLOW | slo("tpot", 0.05),
    ),
    Case("PDXSlowFirstToken", "nothing is split", False, _NO_P | first_tokens(3, 3) | _SLOW),
    Case("PDXTransferProbeFailing", "a pair is broken", True, endpoints() | pairs(broken=1)),
    Case("PDXTransferProbeFailing", "pairs have no verdict yet", False, endpoints() | pairs(unknown=2)),
    Case("PDXTransferProbeFailing", "all pairs are broken", False, endpoints() | pairs(verified=0, broken=4)),
    Case("PDXEndpointFlapping", "one a minute", True, endpoints() | ejections("lost", "0+0.25x480")),
    Case("PDXEndpointFlapping", "once", False, endpoints() | ejections("lost", "0x20 1x460")),
    Case("PDXEndpointFlapping", "the last one stays in use", False, endpoints() | ejections("overridden", "0+1x480")),
    Case("PDXNotAvailable", "it was available", True, _NOT_AVAILABLE),
    Case("PDXNotAvailable", "it starts for the first time", False, condition("Available", ("False", "1x480"))),
    Case("PDXNotAvailable", "the gateway is gone", False, _NOT_AVAILABLE | _DOWN),
    Case("PDXNotAvailable", "the spec is invalid, and all serves", False, _UNKNOWN),
    Case("PDXDegraded", "an engine does not start", True, endpoints() | _DEGRADED),
    Case("PDXDegraded", "all is as specified", False, condition("Degraded", ("False", "1x480"))),
    Case("PDXDegraded", "no prefill engine serves", False, _NO_P | _DEGRADED),
    Case("PDXDegraded", "it is not available", False, _NOT_AVAILABLE | _DEGRADED),
    Case("PDXRolloutStuck", "since an hour and a half", True, rollout(5400)),
    Case("PDXRolloutStuck", "since ten minutes", False, rollout(600)),
    Case("PDXRolloutStuck", "it is degraded", False, rollout(5400) | _DEGRADED),
    Case(_NOT_RECONCILING, "specs wait", True, operator("0+1x480", "0x480", behind="1x480")),
    Case(_NOT_RECONCILING, "all reconciles fail", True, operator("5x480", "0+1x480")),
    Case(_NOT_RECONCILING, "it is gone", True, operator("5x20", "0x20", "0x20", "1x20")),
    Case(_NOT_RECONCILING, "some reconciles fail", False, operator("0+3x480", "0+1x480")),
    Case(_NOT_RECONCILING, "nothing happens", False, operator("5x480", "2x480")),
)
