"""PodDisruptionBudgets: how many pods may be evicted at the same time."""

from pdx_api.names import LABEL_DEPLOYMENT, LABEL_ROLE, gateway_name, pool_name
from pdx_api.spec.types import Disruption, Spec
from pdx_operator.render.objects import Manifest, Owner, gateway_labels, metadata


def disruption_budgets(spec: Spec, owner: Owner) -> tuple[Manifest, ...]:
    """One budget for each role, over all its revisions, and one for the gateway if there is one."""
    gateway = [_budget(owner, gateway_name(owner.name), gateway_labels(owner), spec.gateway.disruption)]
    roles = {role: pool.disruption for role, pool in spec.pools().items()}
    return (
        *(
            _budget(
                owner, pool_name(owner.name, role), {LABEL_DEPLOYMENT: owner.name, LABEL_ROLE: str(role)}, disruption
            )
            for role, disruption in roles.items()
        ),
        *(gateway if spec.gateway.enabled else ()),
    )


def _budget(owner: Owner, name: str, labels: dict[str, str], disruption: Disruption) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(owner, name, labels),
        "spec": {
            "maxUnavailable": disruption.max_unavailable,
            "selector": {"matchLabels": labels},
            # An unready pod serves no requests, so it may always be evicted.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
