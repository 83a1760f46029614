"""A connector's side services: a Deployment of one pod and a Service for each revision, or a sidecar of each engine.

The side services of a revision exist as long as its engines (`plan.reconcile_plan`), because no other revision can use
their KV.
"""

from typing import Any, Final

from pdx_api.connectors.base import SideService, Site
from pdx_api.names import (
    ANNOTATION_WIRING,
    LABEL_DEPLOYMENT,
    LABEL_REVISION,
    LABEL_SERVICE,
    SERVICE_CONTAINER,
    service_name,
)
from pdx_api.render.engines import pool_bytes, service_command, service_inputs, side_services, wiring_number
from pdx_api.spec.types import Spec
from pdx_operator.render.objects import (
    POD_IP,
    Manifest,
    Owner,
    address_variable,
    app_labels,
    grace_seconds,
    literal,
    metadata,
    with_address,
    with_template,
)
from pdx_operator.render.overlay import overlaid

USER_ID: Final = 2000
"""The engines' user, because side services run in the engines' image."""
_OVERHEAD_BYTES: Final = 2 * 2**30
"""Memory of a program in addition to its pool."""
_PROGRAM_BYTES: Final = 2**30
"""Memory of a program without a pool."""
_START_SECONDS: Final = 300
# PyTorch looks up a user name at import, and an image may have no entry for our user.
_OWN: Final = ({"name": "USER", "value": "vllm"}, {"name": "HOME", "value": "/tmp"})  # noqa: S108


def service_sites(spec: Spec, name: str, revision: str) -> dict[str, Site]:
    """Addresses of an engine's side services, by service name: its revision's services and its own sidecars."""
    return {
        s.name: Site(f"$({POD_IP})" if s.is_sidecar else service_name(name, s.name, revision), s.ports)
        for s in side_services(spec)
    }


def service_manifests(spec: Spec, owner: Owner, revision: str) -> tuple[Manifest, ...]:
    """Deployment and Service of each side service that a revision has one of.

    Raises OverlayError for a `podTemplate` that cannot be applied.
    """
    return tuple(
        manifest
        for service in side_services(spec)
        if not service.is_sidecar
        for manifest in (_service(owner, service, revision), _deployment(spec, owner, service, revision))
    )


def sidecars(spec: Spec, name: str, revision: str) -> list[Manifest]:
    """The sidecars of an engine: init containers that Kubernetes starts before it and restarts when they end.

    They have no readiness probe, because an engine serves without them too.
    """
    sites = service_sites(spec, name, revision)
    return [
        {
            **_container(spec, service, Site(f"$({POD_IP})", service.ports, services=sites)),
            "restartPolicy": "Always",
        }
        for service in side_services(spec)
        if service.is_sidecar
    ]


def _labels(owner: Owner, service: SideService, revision: str) -> dict[str, str]:
    return {LABEL_DEPLOYMENT: owner.name, LABEL_SERVICE: service.name, LABEL_REVISION: revision}


def _service(owner: Owner, service: SideService, revision: str) -> Manifest:
    labels = _labels(owner, service, revision)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(owner, service_name(owner.name, service.name, revision), labels),
        "spec": {
            "selector": labels,
            "ports": [{"name": name, "port": port, "targetPort": name} for name, port in service.ports.items()],
        },
    }


def _deployment(spec: Spec, owner: Owner, service: SideService, revision: str) -> Manifest:
    labels = _labels(owner, service, revision)
    container = _container(spec, service, Site("0.0.0.0", service.ports))  # noqa: S104
    pod = {
        "containers": [{**container, "name": SERVICE_CONTAINER, "readinessProbe": _probe(service, 5, 2)}],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": grace_seconds(0),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(owner, service_name(owner.name, service.name, revision), labels, _annotations(spec)),
        "spec": {
            "replicas": 1,
            # Two pods at a time would hold half of the KV each.
            "strategy": {"type": "Recreate"},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": labels},
            "template": _overlaid(spec, {"metadata": {"labels": app_labels(labels)}, "spec": pod}),
        },
    }
    return with_template(deployment, service_inputs(spec, service))


def _annotations(spec: Spec) -> dict[str, str]:
    number = wiring_number(spec)
    return {ANNOTATION_WIRING: str(number)} if number > 1 else {}


def _overlaid(spec: Spec, template: Manifest) -> Manifest:
    if spec.kv_transfer.pod_template is None:
        return template
    overlay = spec.kv_transfer.pod_template.overlay()
    return overlaid(template, overlay, container=SERVICE_CONTAINER, where="spec.kvTransfer.podTemplate")


def _container(spec: Spec, service: SideService, site: Site) -> Manifest:
    command = service_command(spec, service, site)
    policy = spec.engine.image_pull_policy
    memory = pool_bytes(spec) + _OVERHEAD_BYTES if service.holds_pool else _PROGRAM_BYTES
    return {
        "name": service.name,
        "image": spec.engine.image,
        **({"imagePullPolicy": policy} if policy else {}),
        "command": [literal(command[0])],
        "args": [with_address(argument) for argument in command[1:]],
        "env": [*([address_variable()] if service.is_sidecar else []), *_OWN, *_user_env(spec, service)],
        "ports": [{"name": name, "containerPort": port} for name, port in service.ports.items()],
        "startupProbe": _probe(service, 5, _START_SECONDS // 5),
        "livenessProbe": _probe(service, 10, 6),
        "resources": {"requests": {"memory": str(memory)}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _user_env(spec: Spec, service: SideService) -> list[dict[str, Any]]:
    """The user's environment for engines, which also applies to side services: they run the same image."""
    own = {POD_IP, *(each["name"] for each in _OWN)}
    written = with_address if service.is_sidecar else literal
    return [
        {"name": each.name, "valueFrom": each.value_from.manifest()}
        if each.value_from is not None
        else {"name": each.name, "value": written(each.value or "")}
        for each in spec.engine.env
        if each.name not in own
    ]


def _probe(service: SideService, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": service.probe_path, "port": service.probe_port},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
