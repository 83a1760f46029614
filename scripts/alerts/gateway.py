"""Alerts about the latency that users see, and about ejected engines."""

from typing import Final

from scripts.alerts.model import ONE, WHICH, Alert, Severity, rate

BUDGET: Final = 0.01
"""Share of requests whose first token may be late or missing."""
FIRST_TOKEN: Final = "2.5"  # noqa: S105 (not a secret)
"""Seconds within which a first token is in time: a bound of the histogram. The chart may set another one."""


def late(window: str) -> str:
    """Share of requests whose first token was late or missing: no engine was available, or the gateway failed."""
    good = rate(f'pdx_phase_seconds_bucket{{phase="first_token",le="{FIRST_TOKEN}"}}', window)
    answered = rate('pdx_phase_seconds_count{phase="first_token"}', window)
    unanswered = rate('pdx_requests_total{outcome=~"shed|unavailable|exhausted|internal"}', window)
    return f"1 - {good} / ({answered} + {unanswered} > 0)"


def burn(times: float, long: str, short: str) -> str:
    """The error budget is used up `times` too fast, over the long window and over the short one."""
    return f"({late(long)} > {times * BUDGET:g}) and ({late(short)} > {times * BUDGET:g})"


_LATE: Final = (
    "{{ $value | humanizePercentage }} of requests got their first token after " + FIRST_TOKEN + " s or never"
)

ALERTS: Final = (
    Alert(
        "PDXFirstTokenBudgetBurn",
        burn(14.4, "1h", "5m"),
        "2m",
        Severity.CRITICAL,
        f"TTFT of {WHICH} is high: at this rate a month's error budget lasts two days.",
        f"{_LATE}, over the last hour and over the last five minutes. The budget is 1 %.",
        {"burn": "fast"},
    ),
    Alert(
        "PDXFirstTokenBudgetBurn",
        burn(6, "6h", "30m"),
        "15m",
        Severity.WARNING,
        f"TTFT of {WHICH} is high: at this rate a month's error budget lasts five days.",
        f"{_LATE}, over the last six hours and over the last 30 minutes. The budget is 1 %.",
        {"burn": "slow"},
    ),
    Alert(
        "PDXEndpointFlapping",
        f'max by ({ONE}) (sum by ({ONE}, pod) (increase(pdx_ejections_total{{reason!="overridden"}}[15m]))) > 4',
        "0m",
        Severity.WARNING,
        f"Engines of {WHICH} fail and recover repeatedly.",
        "A gateway ejected engines {{ $value | humanize }} times in 15 minutes.",
    ),
)
