"""All children of a PDDeployment as manifests."""

from pdx_api.spec.types import PDDeployment
from pdx_operator.render.disruption import disruption_budgets
from pdx_operator.render.engines import engine_manifests
from pdx_operator.render.gateway import gateway_deployment, gateway_service
from pdx_operator.render.network_policies import network_policies
from pdx_operator.render.objects import Manifest, owner_of
from pdx_operator.render.rbac import gateway_rbac
from pdx_operator.render.side_services import service_manifests


def children(
    deployment: PDDeployment, revision: str, *, uid: str | None, gateway_image: str, operator_namespace: str = ""
) -> tuple[Manifest, ...]:
    """All children of a PDDeployment, in the order in which they are created.

    `revision` is the spec's pairing revision and `uid` the PDDeployment's (None: outside a cluster). `gateway_image` is
    used if the spec names no image. Gateways accept requests to their admin port from the operator's pods in
    `operator_namespace` (empty: none). Engine Deployments are rendered from the spec; `plan.pinned_template`
    decides whether a live one keeps its template. Raises OverlayError for a `podTemplate` that cannot be applied.
    """
    spec, owner = deployment.spec, owner_of(deployment, uid)
    return (
        # Network policies exist before the engines that they guard.
        *network_policies(spec, owner, operator_namespace),
        *service_manifests(spec, owner, revision),
        *engine_manifests(spec, owner, revision),
        *gateway_rbac(owner),
        gateway_service(spec, owner),
        gateway_deployment(spec, owner, gateway_image),
        *disruption_budgets(spec, owner),
    )
