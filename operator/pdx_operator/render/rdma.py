"""What RDMA needs in an engine's pod: a device, root with IPC_LOCK, and so no limit of locked memory. All or nothing.

Registering memory for RDMA locks it, and containers have a memlock limit of some MiB, at which UCX falls back to TCP
without an error. Linux exempts processes with CAP_IPC_LOCK from the limit (`ib_umem_get`). Without file capabilities
only user 0 has a capability that a container adds.
"""

from collections.abc import Mapping
from typing import Any, Final

from pdx_api.names import ENGINE_CONTAINER, LABEL_ROLE, Role
from pdx_api.spec.pods import RDMA
from pdx_api.spec.types import Spec
from pdx_operator.render.objects import Manifest
from pdx_operator.render.overlay import OverlayError

IPC_LOCK: Final = "IPC_LOCK"
RDMA_DEVICES: Final = ("rdma/", "vpc.amazonaws.com/efa")
"""Beginnings of the resources of RDMA devices."""


def rdma_of(spec: Spec, role: Role) -> RDMA | None:
    """The RDMA devices of a role's engines. Aggregated engines transfer no KV."""
    return None if role is Role.AGGREGATED else spec.engine.rdma


def runs_as_root(spec: Spec, role: Role) -> bool:
    """Whether a role's engines lock memory by a capability."""
    rdma = rdma_of(spec, role)
    return rdma is not None and rdma.as_root


def with_rdma(given: Manifest, rdma: RDMA | None) -> Manifest:
    """A container's resources with the RDMA devices, unless they name the resource already."""
    if rdma is None:
        return given
    return {**given, "limits": {rdma.resource: rdma.count, **given.get("limits", {})}}


def is_engine(manifest: Manifest) -> bool:
    """Whether it is the Deployment of a role's engines."""
    return manifest["kind"] == "Deployment" and manifest["metadata"]["labels"].get(LABEL_ROLE) in set(Role)


def check_rdma(spec: Spec, deployment: Manifest) -> None:
    """Refuse an engine that gets RDMA devices and may not lock memory. Raises OverlayError."""
    if spec.engine.rdma is not None and not spec.engine.rdma.as_root:
        return
    pod = deployment["spec"]["template"]["spec"]
    engine = next(each for each in pod["containers"] if each["name"] == ENGINE_CONTAINER)
    device = next((name for name in _limits(engine) if name.startswith(RDMA_DEVICES)), None)
    if device is None or _locks_memory(pod, engine):
        return
    role = deployment["metadata"]["labels"][LABEL_ROLE]
    raise OverlayError(
        f"the {role} engines get {device} and could not lock memory for it, so UCX would use TCP without an error; "
        f"write spec.engine.rdma: {{resource: {device}}}; add asRoot: false if the nodes do not limit locked memory"
    )


def _limits(container: Mapping[str, Any]) -> Mapping[str, Any]:
    given = container.get("resources") or {}
    return given.get("limits") or {}


def _locks_memory(pod: Mapping[str, Any], engine: Mapping[str, Any]) -> bool:
    security = engine.get("securityContext") or {}
    if security.get("privileged"):
        return True
    user = security.get("runAsUser", (pod.get("securityContext") or {}).get("runAsUser"))
    return user == 0 and IPC_LOCK in ((security.get("capabilities") or {}).get("add") or ())
