"""All children of a PDDeployment as manifests."""

from pdx_api.spec.types import PDDeployment, Spec
from pdx_operator.render.disruption import disruption_budgets
from pdx_operator.render.engines import engine_manifests
from pdx_operator.render.gateway import Installation, gateway_deployment, gateway_service
from pdx_operator.render.http_route import http_routes
from pdx_operator.render.network_policies import network_policies
from pdx_operator.render.objects import Manifest, Owner, owner_of
from pdx_operator.render.rbac import gateway_rbac
from pdx_operator.render.side_services import service_manifests


def children(
    deployment: PDDeployment, revision: str, installation: Installation, *, uid: str | None
) -> tuple[Manifest, ...]:
    """All children of a PDDeployment, in the order in which they are created.

    `revision` is the pairing revision in force and `uid` the PDDeployment's (None: outside a cluster). Deployments of
    engines and side services are rendered from the spec; `plan.pinned_template` decides whether a live one keeps its
    template. Raises OverlayError for a `podTemplate` that cannot be applied.
    """
    spec, owner = deployment.spec, owner_of(deployment, uid)
    manifests = (
        # Network policies exist before the engines that they guard.
        *network_policies(spec, owner, installation.operator_namespace),
        *service_manifests(spec, owner, revision),
        *engine_manifests(spec, owner, revision),
        *(_gateway(spec, owner, installation) if spec.gateway.enabled else ()),
        *disruption_budgets(spec, owner),
    )
    return tuple(with_metadata(spec, manifest) for manifest in manifests)


def _gateway(spec: Spec, owner: Owner, installation: Installation) -> tuple[Manifest, ...]:
    return (
        *gateway_rbac(owner, installation.gateway_role),
        gateway_service(spec, owner),
        gateway_deployment(spec, owner, installation),
        *http_routes(spec, owner),
    )


def with_metadata(spec: Spec, manifest: Manifest) -> Manifest:
    """The manifest with the labels and annotations that the spec gives to all children. PDX's own take precedence."""
    if not spec.labels and not spec.annotations:
        return manifest
    metadata = manifest["metadata"]
    labels = {**spec.labels, **metadata.get("labels", {})}
    annotations = {**spec.annotations, **metadata.get("annotations", {})}
    return {**manifest, "metadata": {**metadata, "labels": labels, "annotations": annotations}}
