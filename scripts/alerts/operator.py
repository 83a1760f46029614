"""Alerts about the operator."""

from typing import Final

from scripts.alerts.model import WHICH, Alert, Severity, objects, unless
from scripts.alerts.states import DEGRADED, NOT_AVAILABLE

_RECONCILES: Final = "pdx_operator_reconcile_seconds_count"
_FAILING: Final = (
    f'(sum by (namespace) (rate({_RECONCILES}{{result!="ok"}}[5m])) > 0 '
    f'unless sum by (namespace) (rate({_RECONCILES}{{result="ok"}}[5m])) > 0)'
)
_BEHIND: Final = "max by (namespace) (min_over_time(pdx_operator_unreconciled_objects[5m])) > 0"
_GONE: Final = (
    "(count by (namespace) (max_over_time(pdx_operator_build_info[3h])) "
    "unless count by (namespace) (pdx_operator_build_info))"
)

ALERTS: Final = (
    Alert(
        "PDXRolloutStuck",
        unless(f"{objects('pdx_operator_rollout_seconds')} > 3600", NOT_AVAILABLE, DEGRADED),
        "5m",
        Severity.WARNING,
        f"The rollout of {WHICH} does not end.",
        "The rollout has taken {{ $value | humanizeDuration }} so far. The engines that served before it still serve.",
    ),
    Alert(
        "PDXOperatorNotReconciling",
        f"{_BEHIND} or {_FAILING} or {_GONE}",
        "4m",
        Severity.CRITICAL,
        "The operator in {{ $labels.namespace }} does not reconcile.",
        "The operator is gone, or every reconcile fails, or specs have not been reconciled for minutes. Engines "
        "and gateways still serve, but changes, rollouts and repairs do not happen.",
        "kubectl -n {{ $labels.namespace }} get pods",
    ),
)
