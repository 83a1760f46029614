"""What an installation of the operator adds to the children of every PDDeployment. Plain data."""

from dataclasses import dataclass

from pdx_operator.render.rbac import RoleKind


@dataclass(frozen=True, slots=True)
class Installation:
    """What the operator's installation adds to every PDDeployment."""

    gateway_image: str
    """Image of gateways whose spec names none."""
    gateway_pull_secrets: tuple[str, ...] = ()
    """Pull secrets of that image, which must exist in the namespace of each PDDeployment."""
    gateway_pull_policy: str = ""
    """When that image is pulled. Empty: Kubernetes' default."""
    operator_namespace: str = ""
    """Gateways accept requests to their admin port from the operator's pods in this namespace; empty: it is in none."""
    gateway_role: RoleKind | None = None
    """The kind of the chart's role for gateways; None: there is no chart."""
