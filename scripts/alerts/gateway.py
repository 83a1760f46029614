"""Alerts about what users get, and about what gateways do with engines."""

from typing import Final

from scripts.alerts.model import ONE, WHICH, Alert, Severity, rate

BUDGET: Final = 0.01
"""Share of requests whose first token may be late or missing."""
FIRST_TOKEN: Final = "2.5"  # noqa: S105 (not a secret)
"""Seconds within which a first token is in time, as the histogram writes its bound; the chart may put another there."""


def late(window: str) -> str:
    """Share of requests whose first token was late, or that got none: no engine could be had, or the gateway failed."""
    good = rate(f'pdx_phase_seconds_bucket{{phase="first_token",le="{FIRST_TOKEN}"}}', window)
    answered = rate('pdx_phase_seconds_count{phase="first_token"}', window)
    unanswered = rate('pdx_requests_total{outcome=~"shed|unavailable|internal"}', window)
    return f"1 - {good} / ({answered} + {unanswered} > 0)"


def burn(times: float, long: str, short: str) -> str:
    """The budget is used up so many times too fast, over a long time and still."""
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
        f"First tokens of {WHICH} are late: a month's error budget is gone in two days.",
        f"{_LATE}, over the last hour and now; 1 % may.",
        {"burn": "fast"},
    ),
    Alert(
        "PDXFirstTokenBudgetBurn",
        burn(6, "6h", "30m"),
        "15m",
        Severity.WARNING,
        f"First tokens of {WHICH} are late: a month's error budget is gone in five days.",
        f"{_LATE}, over the last six hours and now; 1 % may.",
        {"burn": "slow"},
    ),
    Alert(
        "PDXEndpointFlapping",
        f'max by ({ONE}) (sum by ({ONE}, pod) (increase(pdx_ejections_total{{reason!="overridden"}}[15m]))) > 4',
        "0m",
        Severity.WARNING,
        f"Engines of {WHICH} fail and come back again and again.",
        "A gateway left engines out {{ $value | humanize }} times in 15 minutes.",
    ),
)
