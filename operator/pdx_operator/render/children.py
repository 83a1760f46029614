"""A PDDeployment's children as Kubernetes objects: pure functions, plain dicts out."""

from pdx_api.spec.types import PDDeployment
from pdx_operator.render.access import disruption_budgets, gateway_rights, network_policies
from pdx_operator.render.engines import engine_manifests
from pdx_operator.render.gateway import gateway_deployment, gateway_service
from pdx_operator.render.objects import Manifest, owner_of
from pdx_operator.render.side_services import service_manifests


def children(
    deployment: PDDeployment, *, uid: str | None, gateway_image: str, operator_namespace: str = ""
) -> tuple[Manifest, ...]:
    """Everything that a PDDeployment consists of, in the order in which it is made.

    `uid` is that of the PDDeployment (None: not from a cluster), `gateway_image` is used where the spec names none,
    `operator_namespace` is where the operator's pod asks gateways from (empty: it has none).
    Engine Deployments are those of the spec's own revision, as rendered anew (`template.in_force` says what to apply).
    Raises OverlayError for a `podTemplate` that cannot be applied.
    """
    spec, owner = deployment.spec, owner_of(deployment, uid)
    return (
        # What guards the engines is there before them.
        *network_policies(spec, owner, operator_namespace),
        *service_manifests(deployment, owner),
        *engine_manifests(deployment, owner),
        *gateway_rights(owner),
        gateway_service(spec, owner),
        gateway_deployment(spec, owner, gateway_image),
        *disruption_budgets(spec, owner),
    )
