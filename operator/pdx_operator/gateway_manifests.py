"""The gateway of a PDDeployment as Kubernetes objects: its Deployment and the Service that clients reach."""

from typing import Final

from pdx_api.names import (
    ADMIN_PORT,
    GATEWAY_CONTAINER,
    GATEWAY_PORT,
    GATEWAY_SERVICE_PORT,
    PORT_ADMIN,
    PORT_HTTP,
    gateway_name,
)
from pdx_api.types import Spec
from pdx_operator.objects import (
    LEAVING_SECONDS,
    Manifest,
    Owner,
    gateway_labels,
    grace_seconds,
    metadata,
    resources,
    spread,
)
from pdx_operator.overlay import overlaid

USER_ID: Final = 65532
"""User of the gateway's image."""
_ANY: Final = "0.0.0.0"  # noqa: S104


def gateway_deployment(spec: Spec, owner: Owner, image: str) -> Manifest:
    """The gateway's pods; `image` is used where the spec names none. Raises OverlayError for a wrong `podTemplate`."""
    gateway, labels = spec.gateway, gateway_labels(owner)
    # With an autoscaler the number of replicas is not ours to write.
    replicas = {} if gateway.autoscaled else {"replicas": gateway.replicas}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(owner, gateway_name(owner.name), labels),
        "spec": {
            **replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": labels},
            "template": _pod_template(spec, owner, image),
        },
    }


def gateway_service(spec: Spec, owner: Owner) -> Manifest:
    """What clients reach."""
    service, labels = spec.gateway.service, gateway_labels(owner)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(owner, gateway_name(owner.name), labels, service.annotations),
        "spec": {
            "type": service.type,
            "selector": labels,
            "ports": [{"name": PORT_HTTP, "port": GATEWAY_SERVICE_PORT, "targetPort": PORT_HTTP}],
        },
    }


def _pod_template(spec: Spec, owner: Owner, image: str) -> Manifest:
    gateway, labels = spec.gateway, gateway_labels(owner)
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "serviceAccountName": gateway_name(owner.name),
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "containers": [_container(spec, owner, gateway.image or image)],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "terminationGracePeriodSeconds": grace_seconds(spec.engine.shutdown_seconds),
            "topologySpreadConstraints": spread(labels),
        },
    }
    if gateway.pod_template is None:
        return template
    overlay = gateway.pod_template.overlay()
    return overlaid(template, overlay, container=GATEWAY_CONTAINER, where="spec.gateway.podTemplate")


def _container(spec: Spec, owner: Owner, image: str) -> Manifest:
    return {
        "name": GATEWAY_CONTAINER,
        "image": image,
        "args": [
            f"--deployment={owner.name}",
            f"--namespace={owner.namespace}",
            f"--listen={_ANY}:{GATEWAY_PORT}",
            f"--admin={_ANY}:{ADMIN_PORT}",
            f"--workers={spec.gateway.workers}",
            # In place of a preStop: it says on /readyz that it is going away.
            f"--drain-seconds={LEAVING_SECONDS}",
            # A request that an engine may finish is not cut off in front of it.
            f"--shutdown-seconds={spec.engine.shutdown_seconds}",
        ],
        "ports": [
            {"name": PORT_HTTP, "containerPort": GATEWAY_PORT},
            {"name": PORT_ADMIN, "containerPort": ADMIN_PORT},
        ],
        "livenessProbe": {**_probe("/healthz"), "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**_probe("/readyz"), "periodSeconds": 2, "failureThreshold": 2},
        "resources": resources(spec.gateway.resources),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _probe(path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": PORT_ADMIN}, "timeoutSeconds": 5}
