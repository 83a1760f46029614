"""The gateway's manifests: its Deployment, and the Service for clients."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pdx_api.names import (
    ADMIN_PORT,
    ANNOTATION_INPUTS,
    CLIENT_KEYS_FLAG,
    ENGINE_KEY_FLAG,
    GATEWAY_CONTAINER,
    GATEWAY_PORT,
    GATEWAY_SERVICE_PORT,
    GATEWAY_TLS_PORT,
    PORT_ADMIN,
    PORT_HTTP,
    TLS_CERTIFICATE_FLAG,
    TLS_KEY_FLAG,
    gateway_name,
)
from pdx_api.render.engines import stated
from pdx_api.render.gateway_flags import gateway_flags
from pdx_api.spec.types import Spec
from pdx_operator.render.objects import (
    PRE_STOP_SECONDS,
    Manifest,
    Owner,
    address_variable,
    app_labels,
    digest,
    gateway_labels,
    grace_seconds,
    metadata,
    resources,
    spread,
    with_requests,
)
from pdx_operator.render.overlay import overlaid
from pdx_operator.render.rbac import RoleKind
from pdx_operator.render.tracing import trace_variables

USER_ID: Final = 65532
"""User of the gateway's image."""
_MODE: Final = 0o440
"""Mode of the files with keys; the pod's fsGroup owns them."""
_DRAIN_SECONDS: Final = 600
"""How long a gateway that is replaced may finish open requests: an upgrade replaces gateways, and answers of reasoning
models take minutes. A gateway without requests ends at once."""
_REQUESTS: Final = {"cpu": "100m", "memory": "512Mi"}
"""Requests of a gateway without any."""
_NOT_IN_PODS: Final = ("replicas", "enabled", "service", "disruption", "http_route", "pod_template")
"""Fields of `gateway` that its pods do not depend on, or that `_inputs` has in another form."""
_ANY: Final = "0.0.0.0"  # noqa: S104


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


def gateway_deployment(spec: Spec, owner: Owner, installation: Installation) -> Manifest:
    """The Deployment, with a record of what its pods depend on in the spec.

    Raises OverlayError for a wrong `podTemplate`.
    """
    labels = gateway_labels(owner)
    # If the spec names none, an autoscaler may write them. Kubernetes begins with 1.
    replicas = {} if spec.gateway.replicas is None else {"replicas": spec.gateway.replicas}
    inputs = {ANNOTATION_INPUTS: digest(_inputs(spec))}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(owner, gateway_name(owner.name), labels, inputs),
        "spec": {
            **replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": labels},
            "template": _pod_template(spec, owner, installation),
        },
    }


def _inputs(spec: Spec) -> dict[str, object]:
    """Everything in the spec that the gateway's pods depend on. A template that differs otherwise is an upgrade."""
    gateway = spec.gateway
    return {
        "gateway": stated(gateway, without=_NOT_IN_PODS),
        "podTemplate": gateway.pod_template.overlay() if gateway.pod_template else {},
        # Not the flags: a later version may write others for the same spec.
        "routing": stated(spec.routing),
        "slo": stated(spec.slo),
        "verification": stated(spec.kv_transfer.verification),
        "drain": spec.engine.drain_seconds,
        "engineKey": stated(spec.engine.api_key_secret_ref) if spec.engine.api_key_secret_ref else {},
        **({"tracing": stated(tracing)} if (tracing := spec.observability.tracing) is not None else {}),
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
            "ports": [_service_port(spec)],
        },
    }


def service_port(spec: Spec) -> int:
    """The port of the gateway's Service."""
    return GATEWAY_SERVICE_PORT if spec.gateway.tls is None else GATEWAY_TLS_PORT


def _service_port(spec: Spec) -> Manifest:
    if spec.gateway.tls is None:
        return {"name": PORT_HTTP, "port": service_port(spec), "targetPort": PORT_HTTP}
    return {"name": "https", "port": service_port(spec), "targetPort": PORT_HTTP, "appProtocol": "https"}


def _pod_template(spec: Spec, owner: Owner, installation: Installation) -> Manifest:
    gateway, labels = spec.gateway, gateway_labels(owner)
    secrets = [] if gateway.image else [{"name": name} for name in installation.gateway_pull_secrets]
    template = {
        "metadata": {"labels": app_labels(labels)},
        "spec": {
            "serviceAccountName": gateway_name(owner.name),
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "containers": [_container(spec, owner, installation)],
            "volumes": [{"name": "tmp", "emptyDir": {}}, *(files.volume() for files in _files(spec))],
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


def _container(spec: Spec, owner: Owner, installation: Installation) -> Manifest:
    policy = "" if spec.gateway.image else installation.gateway_pull_policy
    return {
        "name": GATEWAY_CONTAINER,
        "image": spec.gateway.image or installation.gateway_image,
        **({"imagePullPolicy": policy} if policy else {}),
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
            *(flag for files in _files(spec) for flag in files.flags()),
        ],
        **({"env": [address_variable(), *named]} if (named := trace_variables(spec, owner.name)) else {}),
        "ports": [
            {"name": PORT_HTTP, "containerPort": GATEWAY_PORT},
            {"name": PORT_ADMIN, "containerPort": ADMIN_PORT},
        ],
        "livenessProbe": {**_probe("/healthz"), "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**_probe("/readyz"), "periodSeconds": 2, "failureThreshold": 2},
        "resources": with_requests(resources(spec.gateway.resources), _REQUESTS),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            *(files.mount() for files in _files(spec)),
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
    return max(_DRAIN_SECONDS, spec.engine.drain_seconds)


@dataclass(frozen=True, slots=True)
class _Files:
    """Values of a Secret as files. The directory is mounted: a file mounted with subPath is never updated."""

    name: str
    secret: str
    keys: Mapping[str, str]
    """The key of the Secret by flag."""
    paths: Mapping[str, str]
    """The file's name by flag."""

    @property
    def directory(self) -> str:
        return f"/etc/pdx/{self.name}"

    def flags(self) -> Iterator[str]:
        return (f"{flag}={self.directory}/{path}" for flag, path in self.paths.items())

    def volume(self) -> Manifest:
        items = [{"key": key, "path": self.paths[flag]} for flag, key in self.keys.items()]
        secret = {"secretName": self.secret, "items": items, "defaultMode": _MODE, "optional": False}
        return {"name": self.name, "secret": secret}

    def mount(self) -> Manifest:
        return {"name": self.name, "mountPath": self.directory, "readOnly": True}


def _files(spec: Spec) -> Iterator[_Files]:
    auth, engine, tls = spec.gateway.auth, spec.engine.api_key_secret_ref, spec.gateway.tls
    if auth is not None:
        yield _key_file("client-keys", CLIENT_KEYS_FLAG, auth.secret_ref.name, auth.secret_ref.key)
    if engine is not None:
        yield _key_file("engine-key", ENGINE_KEY_FLAG, engine.name, engine.key)
    if tls is not None:
        # The keys of a Secret of type kubernetes.io/tls.
        names = {TLS_CERTIFICATE_FLAG: "tls.crt", TLS_KEY_FLAG: "tls.key"}
        yield _Files("tls", tls.secret_ref.name, names, names)


def _key_file(name: str, flag: str, secret: str, key: str) -> _Files:
    return _Files(name, secret, {flag: key}, {flag: name})


def _probe(path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": PORT_ADMIN}, "timeoutSeconds": 5}
