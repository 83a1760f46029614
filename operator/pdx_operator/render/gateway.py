"""The gateway's manifests: its Deployment, and the Service for clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pdx_api.names import (
    ADMIN_PORT,
    CLIENT_KEYS_FLAG,
    ENGINE_KEY_FLAG,
    GATEWAY_CONTAINER,
    GATEWAY_PORT,
    GATEWAY_SERVICE_PORT,
    PORT_ADMIN,
    PORT_HTTP,
    gateway_name,
)
from pdx_api.render.gateway_flags import gateway_flags
from pdx_api.spec.types import Spec
from pdx_operator.render.objects import (
    PRE_STOP_SECONDS,
    Manifest,
    Owner,
    gateway_labels,
    grace_seconds,
    metadata,
    resources,
    spread,
)
from pdx_operator.render.overlay import overlaid

USER_ID: Final = 65532
"""User of the gateway's image."""
_MODE: Final = 0o440
"""Mode of the files with keys; the pod's fsGroup owns them."""
_DRAIN_SECONDS: Final = 600
"""How long a gateway that is replaced may finish open requests: an upgrade replaces gateways, and answers of reasoning
models take minutes. A gateway without requests ends at once."""
_REQUESTS: Final = {"cpu": "100m", "memory": "512Mi"}
"""Requests of a gateway without `resources`. Without any the pod is BestEffort: the first to be evicted, and refused
where a quota counts requests."""
_ANY: Final = "0.0.0.0"  # noqa: S104


def gateway_deployment(spec: Spec, owner: Owner, image: str, pull_secrets: Sequence[str] = ()) -> Manifest:
    """The Deployment; `image` and its pull secrets are used if the spec names no image.

    Raises OverlayError for a wrong `podTemplate`.
    """
    gateway, labels = spec.gateway, gateway_labels(owner)
    # The autoscaler writes the replicas.
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
            "template": _pod_template(spec, owner, image, pull_secrets),
        },
    }


def gateway_service(spec: Spec, owner: Owner) -> Manifest:
    """The Service for clients."""
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


def _pod_template(spec: Spec, owner: Owner, image: str, pull_secrets: Sequence[str]) -> Manifest:
    gateway, labels = spec.gateway, gateway_labels(owner)
    secrets = [] if gateway.image else [{"name": name} for name in pull_secrets]
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "serviceAccountName": gateway_name(owner.name),
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "containers": [_container(spec, owner, gateway.image or image)],
            "volumes": [{"name": "tmp", "emptyDir": {}}, *(keys.volume() for keys in _keys(spec))],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **({"imagePullSecrets": secrets} if secrets else {}),
            "terminationGracePeriodSeconds": grace_seconds(_drain_seconds(spec)),
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
            # In place of a preStop hook: while it drains, /readyz answers 503.
            f"--drain-seconds={PRE_STOP_SECONDS}",
            f"--shutdown-seconds={_drain_seconds(spec)}",
            *gateway_flags(spec),
            *(f"{keys.flag}={keys.file}" for keys in _keys(spec)),
        ],
        "ports": [
            {"name": PORT_HTTP, "containerPort": GATEWAY_PORT},
            {"name": PORT_ADMIN, "containerPort": ADMIN_PORT},
        ],
        "livenessProbe": {**_probe("/healthz"), "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**_probe("/readyz"), "periodSeconds": 2, "failureThreshold": 2},
        "resources": resources(spec.gateway.resources) or {"requests": dict(_REQUESTS)},
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            *(keys.mount() for keys in _keys(spec)),
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _drain_seconds(spec: Spec) -> int:
    """At least as long as an engine may need to finish a request."""
    return max(_DRAIN_SECONDS, spec.engine.shutdown_seconds)


@dataclass(frozen=True, slots=True)
class _KeyFile:
    """A value of a Secret as a file. The directory is mounted: a file mounted with subPath is never updated."""

    name: str
    flag: str
    secret: str
    key: str

    @property
    def directory(self) -> str:
        return f"/etc/pdx/{self.name}"

    @property
    def file(self) -> str:
        return f"{self.directory}/{self.name}"

    def volume(self) -> Manifest:
        items = [{"key": self.key, "path": self.name}]
        secret = {"secretName": self.secret, "items": items, "defaultMode": _MODE, "optional": False}
        return {"name": self.name, "secret": secret}

    def mount(self) -> Manifest:
        return {"name": self.name, "mountPath": self.directory, "readOnly": True}


def _keys(spec: Spec) -> tuple[_KeyFile, ...]:
    auth, engine = spec.gateway.auth, spec.engine.api_key_secret_ref
    clients = [_KeyFile("client-keys", CLIENT_KEYS_FLAG, auth.secret_ref.name, auth.secret_ref.key)] if auth else []
    engines = [_KeyFile("engine-key", ENGINE_KEY_FLAG, engine.name, engine.key)] if engine else []
    return (*clients, *engines)


def _probe(path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": PORT_ADMIN}, "timeoutSeconds": 5}
