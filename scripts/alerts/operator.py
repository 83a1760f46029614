"""Alerts about the operator."""

from typing import Final

from scripts.alerts.model import Alert, Severity

_TURNS: Final = "pdx_operator_reconcile_seconds_count"
_FAILING: Final = (
    f'(sum by (namespace) (rate({_TURNS}{{result!="ok"}}[10m])) > 0 '
    f'unless sum by (namespace) (rate({_TURNS}{{result="ok"}}[10m])) > 0)'
)
_BEHIND: Final = "max by (namespace) (min_over_time(pdx_operator_unreconciled_objects[10m])) > 0"
_GONE: Final = (
    "(count by (namespace) (max_over_time(pdx_operator_build_info[3h])) "
    "unless count by (namespace) (pdx_operator_build_info))"
)

ALERTS: Final = (
    Alert(
        "PDXRolloutStuck",
        "max by (namespace, object) (pdx_operator_rollout_seconds) > 3600",
        "5m",
        Severity.WARNING,
        "The rollout of {{ $labels.object }} does not end.",
        "For {{ $value | humanizeDuration }} it has been on its way to what its spec asks for. What served before goes "
        "on serving.",
    ),
    Alert(
        "PDXOperatorNotReconciling",
        f"{_BEHIND} or {_FAILING} or {_GONE}",
        "5m",
        Severity.CRITICAL,
        "The operator in {{ $labels.namespace }} does not get through.",
        "It has disappeared, or all it tries fails, or specs have not been worked on for ten minutes. What serves goes "
        "on serving; changes, rollouts and repairs do not happen.",
    ),
)
