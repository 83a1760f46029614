"""Alerts about the operator."""

from typing import Final

from scripts.alerts.model import Alert, Severity

_RECONCILES: Final = "pdx_operator_reconcile_seconds_count"
_FAILING: Final = (
    f'(sum by (namespace) (rate({_RECONCILES}{{result!="ok"}}[10m])) > 0 '
    f'unless sum by (namespace) (rate({_RECONCILES}{{result="ok"}}[10m])) > 0)'
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
        "The rollout has taken {{ $value | humanizeDuration }} so far. The engines that served before it still serve.",
    ),
    Alert(
        "PDXOperatorNotReconciling",
        f"{_BEHIND} or {_FAILING} or {_GONE}",
        "5m",
        Severity.CRITICAL,
        "The operator in {{ $labels.namespace }} does not reconcile.",
        "The operator is gone, or every reconcile fails, or specs have not been reconciled for ten minutes. Engines "
        "and gateways still serve, but changes, rollouts and repairs do not happen.",
    ),
)
