"""A PDDeployment's engines as Kubernetes objects: pure functions, plain dicts out.

The engines are those of `pdx_api.engines`, which `pdx up` runs as processes; here they become one Deployment and one
headless Service for each role and revision.
"""

from typing import Any, Final

from pdx_api.connectors.base import Site
from pdx_api.engines import engine_command, pairing_revision
from pdx_api.names import (
    ANNOTATION_CONNECTOR,
    ANNOTATION_ORDER,
    ENGINE_PORT,
    LABEL_DEPLOYMENT,
    LABEL_REVISION,
    LABEL_ROLE,
    Mode,
    Role,
)
from pdx_api.types import PDDeployment, Pool

Manifest = dict[str, Any]

POD_IP: Final = "POD_IP"
"""Environment variable that holds the pod's own address."""
HTTP: Final = "http"

STARTUP_SECONDS: Final = 1800
"""How long an engine may load before it is started anew; weights of hundreds of GB take that long from a slow store."""


def engine_manifests(deployment: PDDeployment) -> list[Manifest]:
    """The engines' Deployments and Services, in the order of the roles."""
    pools = deployment.spec.pools()
    return [
        manifest
        for role, pool in pools.items()
        for manifest in (engine_deployment(deployment, role, pool), engine_service(deployment, role))
    ]


def engine_deployment(deployment: PDDeployment, role: Role, pool: Pool) -> Manifest:
    """The engines of one role in the revision of this spec."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(deployment, role),
        "spec": {
            "replicas": pool.replicas,
            "selector": {"matchLabels": _labels(deployment, role)},
            "template": {
                "metadata": {"labels": _labels(deployment, role), "annotations": _annotations(deployment)},
                "spec": {"containers": [_container(deployment, role, pool)]},
            },
        },
    }


def engine_service(deployment: PDDeployment, role: Role) -> Manifest:
    """A headless Service, which gives the engines of one role names."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(deployment, role),
        "spec": {
            "clusterIP": "None",
            "selector": _labels(deployment, role),
            "ports": [{"name": name, "port": port, "targetPort": name} for name, port in _ports(deployment).items()],
        },
    }


def _metadata(deployment: PDDeployment, role: Role) -> Manifest:
    namespace = deployment.metadata.namespace
    return {
        "name": f"{deployment.metadata.name}-{role}-{pairing_revision(deployment.spec)}",
        **({"namespace": namespace} if namespace else {}),
        "labels": _labels(deployment, role),
        "annotations": _annotations(deployment),
    }


def _labels(deployment: PDDeployment, role: Role) -> dict[str, str]:
    return {
        LABEL_DEPLOYMENT: deployment.metadata.name,
        LABEL_ROLE: str(role),
        LABEL_REVISION: pairing_revision(deployment.spec),
    }


def _annotations(deployment: PDDeployment) -> dict[str, str]:
    spec = deployment.spec
    if spec.mode is Mode.AGGREGATED:
        return {}
    return {ANNOTATION_CONNECTOR: spec.connector.name, ANNOTATION_ORDER: str(spec.order)}


def _ports(deployment: PDDeployment) -> dict[str, int]:
    return {HTTP: ENGINE_PORT, **_connector_ports(deployment)}


def _connector_ports(deployment: PDDeployment) -> dict[str, int]:
    if deployment.spec.mode is Mode.AGGREGATED:
        return {}
    return dict(deployment.spec.connector.port_names)


def _container(deployment: PDDeployment, role: Role, pool: Pool) -> Manifest:
    site = Site(host=f"$({POD_IP})", ports=_connector_ports(deployment))
    command = engine_command(deployment.spec, role, site=site, listen="0.0.0.0", port=ENGINE_PORT)  # noqa: S104
    pod_ip = {"name": POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return {
        "name": "engine",
        "image": deployment.spec.engine.image,
        "command": ["vllm"],
        "args": [_literal(arg) for arg in command.args],
        # Kubernetes expands $(POD_IP) only in variables that come after it.
        "env": [pod_ip, *({"name": name, "value": _literal(value)} for name, value in command.env if name != POD_IP)],
        "ports": [{"name": name, "containerPort": port} for name, port in _ports(deployment).items()],
        **_probes(),
        "resources": pool.resources.model_dump(mode="json", exclude_defaults=True),
    }


def _literal(value: str) -> str:
    """Kubernetes would expand what looks like a variable; only the pod's address is one."""
    return value.replace("$(", "$$(").replace(f"$$({POD_IP})", f"$({POD_IP})")


def _probes() -> Manifest:
    def probe(period: int, failures: int, timeout: int) -> Manifest:
        return {
            "httpGet": {"path": "/health", "port": HTTP},
            "periodSeconds": period,
            "timeoutSeconds": timeout,
            "failureThreshold": failures,
        }

    return {
        "startupProbe": probe(5, STARTUP_SECONDS // 5, 5),
        "readinessProbe": probe(5, 2, 5),
        # /health waits for the engine's event loop, which a very long step may hold up: only a minute means dead.
        "livenessProbe": probe(10, 6, 10),
    }
