"""All checks of `pdx doctor`, in the order of their findings within one severity."""

from typing import Final

from pdx_cli.checks.clients import (
    broken_answers,
    failed_requests,
    failing_engines,
    flapping_engines,
    full_queue,
    late_answers,
    slow_phases,
    unanswered_clients,
    whole_requests,
)
from pdx_cli.checks.cluster import (
    degraded_condition,
    gateway_rights,
    invalid_spec,
    missing_secrets,
    operator_behind,
    serving_conditions,
    stuck_rollout,
    unpaired_revisions,
    unstarted_pods,
    warning_events,
)
from pdx_cli.checks.engines import (
    changed_arguments,
    ended_processes,
    hybrid_models,
    missing_connector,
    starting_run,
    unequal_adapters,
    unequal_pairs,
    unhealthy_engines,
)
from pdx_cli.checks.findings import Check
from pdx_cli.checks.gateways import (
    gateways_without_endpoints,
    lost_handoffs,
    silent_gateways,
    unsplit_requests,
    unused_endpoints,
)
from pdx_cli.checks.transfer import (
    counted_failures,
    failed_transfers,
    failed_verification,
    recomputed_prompts,
    suspended_pairs,
)
from pdx_cli.checks.versions import misstated_versions, rust_frontends, unchecked_versions

CHECKS: Final[tuple[Check, ...]] = (
    unanswered_clients,
    failed_requests,
    late_answers,
    whole_requests,
    operator_behind,
    invalid_spec,
    missing_secrets,
    unstarted_pods,
    degraded_condition,
    gateway_rights,
    unpaired_revisions,
    stuck_rollout,
    warning_events,
    serving_conditions,
    starting_run,
    ended_processes,
    missing_connector,
    unequal_pairs,
    misstated_versions,
    unequal_adapters,
    changed_arguments,
    failed_verification,
    failed_transfers,
    suspended_pairs,
    unused_endpoints,
    unhealthy_engines,
    silent_gateways,
    gateways_without_endpoints,
    recomputed_prompts,
    full_queue,
    slow_phases,
    failing_engines,
    broken_answers,
    flapping_engines,
    lost_handoffs,
    unsplit_requests,
    counted_failures,
    hybrid_models,
    unchecked_versions,
    rust_frontends,
)
