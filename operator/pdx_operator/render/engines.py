"""The engines' manifests: one Deployment for each role and revision.

`pdx_api.render.engines` provides the command lines, as it does for `pdx up`.
"""

import posixpath
from collections.abc import Mapping
from typing import Any, Final

from pdx_api.connectors.base import Site
from pdx_api.defaults import STARTUP_SECONDS
from pdx_api.names import (
    ANNOTATION_CONNECTOR,
    ANNOTATION_FILE,
    ANNOTATION_ORDER,
    ANNOTATION_PATCHES,
    ANNOTATION_PROTOCOL,
    ANNOTATION_RANKS,
    ANNOTATION_SEQUENCES,
    ANNOTATION_WIRING,
    CODE_MOUNT,
    ENGINE_CONTAINER,
    ENGINE_PORT,
    FILES_MOUNT,
    LABEL_DEPLOYMENT,
    LABEL_REVISION,
    LABEL_ROLE,
    PORT_HTTP,
    STORAGE_MOUNT,
    Mode,
    Role,
    engines_name,
)
from pdx_api.render.engines import (
    EngineCommand,
    engine_command,
    engine_inputs,
    max_sequences,
    pool_bytes,
    wiring_number,
)
from pdx_api.rules.spec_rules import SHARED_VARIABLES
from pdx_api.spec.kv_transfer import KVStorage
from pdx_api.spec.types import Pool, Rollout, Spec
from pdx_operator.render.objects import (
    POD_IP,
    PRE_STOP_SECONDS,
    Manifest,
    Owner,
    address_variable,
    app_labels,
    grace_seconds,
    metadata,
    resources,
    spread,
    with_address,
    with_requests,
    with_template,
)
from pdx_operator.render.overlay import OverlayError, overlaid
from pdx_operator.render.rdma import IPC_LOCK, rdma_of, runs_as_root, with_rdma
from pdx_operator.render.side_services import service_sites, sidecars
from pdx_operator.render.spec_fields import field_of
from pdx_operator.render.storage import engine_env, engine_mounts, engine_volumes
from pdx_operator.render.tracing import trace_variables

USER_ID: Final = 2000
"""User and group of an engine: the user `vllm` of the stock image (vLLM 0.32 `docker/Dockerfile`)."""

_REQUESTS: Final = {"cpu": "150m", "memory": "1Gi"}
"""Requests of an engine without any. docs/gpu/values.md has realistic ones.

They are so few that a pair rolls over on a node of two cores: two old and two new engines take 4 x 150m, an old and a
new gateway 2 x 100m, and the operator 100m. Of 2000m, these 900m leave 1100m for the cluster's own pods; kind's take
950m.
"""
_PROBE_SECONDS: Final = 5
WARM_SECONDS: Final = 10
"""How long an engine must be ready before it counts as available. The gateways warm it up meanwhile; without the delay,
a rollout would remove old engines before that."""
_PULL_SECONDS: Final = 600
"""Time to pull the image. Kubernetes waits so long, and for the model to load, for progress of a Deployment."""


def engine_manifests(spec: Spec, owner: Owner, revision: str) -> tuple[Manifest, ...]:
    """The engines' Deployments in this revision of the spec, role by role.

    Raises OverlayError for a `podTemplate` that cannot be applied.
    """
    deployments = {role: engine_deployment(spec, owner, role, pool, revision) for role, pool in spec.pools().items()}
    _check_shared(deployments)
    return tuple(deployments.values())


def _check_shared(deployments: Mapping[Role, Manifest]) -> None:
    """Refuse overlays that give P and D different values of a variable that both must share."""
    found = [_shared_variables(deployment) for deployment in deployments.values()]
    for name in SHARED_VARIABLES:
        if any(each.get(name) != found[0].get(name) for each in found):
            raise OverlayError(
                f"podTemplate of {' and '.join(deployments)} differ in {name}, which the engines must share; "
                "write it in engine.env"
            )


def _shared_variables(deployment: Manifest) -> dict[str, Any]:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    engine = next(container for container in containers if container["name"] == ENGINE_CONTAINER)
    return {each["name"]: each for each in engine.get("env", ()) if each["name"] in SHARED_VARIABLES}


def engine_deployment(spec: Spec, owner: Owner, role: Role, pool: Pool, revision: str) -> Manifest:
    """The Deployment of one role, with the record of its pod template and of the template's inputs."""
    labels = _labels(owner, role, revision)
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(owner, engines_name(owner.name, role, revision), labels, _annotations(spec)),
        "spec": {
            "replicas": pool.initial_replicas,
            "strategy": _strategy(spec.rollout),
            "minReadySeconds": WARM_SECONDS,
            "progressDeadlineSeconds": _startup_seconds(spec) + _PULL_SECONDS,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": labels},
            "template": pod_template(spec, role, pool, labels),
        },
    }
    return with_template(manifest, engine_inputs(spec, role))


def pod_template(spec: Spec, role: Role, pool: Pool, labels: Mapping[str, str]) -> Manifest:
    """The pod template of an engine, with the user's overlay merged in."""
    init_containers = sidecars(spec, labels[LABEL_DEPLOYMENT], labels[LABEL_REVISION])
    command = _command(spec, role, labels)
    files = {f"{ANNOTATION_FILE}{name}": content for name, content in command.files}
    template = {
        "metadata": {
            "labels": app_labels(labels),
            "annotations": {**_annotations(spec), **_ranks(pool), **_sequences(spec, role), **files},
        },
        "spec": {
            **({"initContainers": init_containers} if init_containers else {}),
            "containers": [_container(spec, role, pool, command, labels[LABEL_DEPLOYMENT])],
            "volumes": engine_volumes(spec.model, _storage(spec), _code(spec), dict(command.files)),
            "securityContext": {
                **_user(runs_as_root(spec, role)),
                "fsGroup": USER_ID,
                # Otherwise Kubernetes walks through a cache of terabytes at every start.
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "terminationGracePeriodSeconds": grace_seconds(spec.engine.drain_seconds),
            "topologySpreadConstraints": spread(labels),
            "automountServiceAccountToken": False,
            # A Service named `vllm` would set VLLM_PORT, which vLLM reads.
            "enableServiceLinks": False,
        },
    }
    overlays = {"engine": spec.engine.pod_template, str(field_of(spec, role)): pool.pod_template}
    for field, overlay in overlays.items():
        if overlay is not None:
            where = f"spec.{field}.podTemplate"
            template = overlaid(template, overlay.overlay(), container=ENGINE_CONTAINER, where=where)
    return template


def _labels(owner: Owner, role: Role, revision: str) -> dict[str, str]:
    return {LABEL_DEPLOYMENT: owner.name, LABEL_ROLE: str(role), LABEL_REVISION: revision}


def _annotations(spec: Spec) -> dict[str, str]:
    if spec.mode is Mode.AGGREGATED:
        return {}
    wiring = {ANNOTATION_CONNECTOR: spec.connector.name, ANNOTATION_ORDER: str(spec.order)}
    if (number := wiring_number(spec)) > 1:
        wiring[ANNOTATION_WIRING] = str(number)
    if spec.connector.any_patch(spec.kv_transfer.config):
        wiring[ANNOTATION_PATCHES] = "any"
    return {**wiring, ANNOTATION_PROTOCOL: spec.protocol} if spec.protocol else wiring


def _ranks(pool: Pool) -> dict[str, str]:
    """The number of ranks, for gateways; nothing where it is 1."""
    ranks = pool.parallelism.data or 1
    return {ANNOTATION_RANKS: str(ranks)} if ranks > 1 else {}


def _sequences(spec: Spec, role: Role) -> dict[str, str]:
    """How many requests a rank runs at a time, for gateways; nothing where the args do not name it."""
    sequences = max_sequences(spec, role)
    return {ANNOTATION_SEQUENCES: str(sequences)} if sequences else {}


def _connector_ports(spec: Spec) -> dict[str, int]:
    return {} if spec.mode is Mode.AGGREGATED else dict(spec.connector.port_names)


def _storage(spec: Spec) -> KVStorage | None:
    return None if spec.mode is Mode.AGGREGATED else spec.kv_transfer.storage


def _code(spec: Spec) -> str | None:
    """Name of the ConfigMap with the code of a custom connector."""
    custom = spec.kv_transfer.custom if spec.mode is Mode.DISAGGREGATED else None
    if custom is None or custom.code is None or custom.code.config_map is None:
        return None
    return custom.code.config_map.name


def _ports(spec: Spec) -> dict[str, int]:
    return {PORT_HTTP: ENGINE_PORT, **_connector_ports(spec)}


def _strategy(rollout: Rollout) -> Manifest:
    """How Kubernetes replaces a role's pods after a change that does not change the revision."""
    surge, unavailable = rollout.max_surge, rollout.max_unavailable
    if {surge, unavailable} <= {0, "0%"}:
        unavailable = 1  # Kubernetes rejects a Deployment in which both are 0.
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def _command(spec: Spec, role: Role, labels: Mapping[str, str]) -> EngineCommand:
    revision = labels[LABEL_REVISION]
    # Engines cannot use the KV of another model, and a file of KV does not name its model.
    storage = posixpath.join(STORAGE_MOUNT, revision) if _storage(spec) is not None else ""
    code = CODE_MOUNT if _code(spec) is not None else None
    services = service_sites(spec, labels[LABEL_DEPLOYMENT], revision)
    site = Site(
        f"$({POD_IP})", _connector_ports(spec), storage, code, services, FILES_MOUNT, pool_bytes(spec), revision
    )
    return engine_command(
        spec,
        role,
        site=site,
        listen="0.0.0.0",  # noqa: S104
        port=ENGINE_PORT,
        shutdown_seconds=spec.engine.drain_seconds,
    )


def _startup_seconds(spec: Spec) -> int:
    return spec.engine.startup_seconds or STARTUP_SECONDS


def _user(root: bool) -> Manifest:
    user = 0 if root else USER_ID
    return {"runAsNonRoot": not root, "runAsUser": user, "runAsGroup": user}


def _container(spec: Spec, role: Role, pool: Pool, command: EngineCommand, deployment: str) -> Manifest:
    engine = spec.engine
    return {
        "name": ENGINE_CONTAINER,
        "image": engine.image,
        **({"imagePullPolicy": engine.image_pull_policy} if engine.image_pull_policy else {}),
        "command": ["vllm"],
        "args": [with_address(arg) for arg in command.args],
        "env": _env(spec, command, deployment),
        "ports": [{"name": name, "containerPort": port} for name, port in _ports(spec).items()],
        **_probes(_startup_seconds(spec)),
        # vLLM aborts requests that it receives after SIGTERM.
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        "resources": with_requests(with_rdma(resources(pool.resources), rdma_of(spec, role)), _REQUESTS),
        "volumeMounts": engine_mounts(spec.model, _storage(spec), _code(spec), dict(command.files)),
        "securityContext": _security(runs_as_root(spec, role)),
        # Writes the cause of a crash into the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _env(spec: Spec, command: EngineCommand, deployment: str) -> list[Manifest]:
    wired, sources = dict(command.env), dict(command.env_from)
    ours = [
        variable
        for variable in (*engine_env(spec.model, spec.engine.api_key_secret_ref), *trace_variables(spec, deployment))
        if variable["name"] not in wired and variable["name"] not in sources
    ]
    users = [{"name": name, "value": with_address(value)} for name, value in wired.items() if name != POD_IP]
    others = [{"name": name, "valueFrom": each.manifest()} for name, each in sources.items() if name != POD_IP]
    return [address_variable(), *ours, *users, *others]


def _security(locks_memory: bool) -> dict[str, Any]:
    """The root file system stays writable, because libraries that compile kernels at run time write next to their code.

    RDMA pins memory. IPC_LOCK lifts the limit of locked memory, but for root only (`render.rdma`).
    """
    added = {"add": [IPC_LOCK]} if locks_memory else {}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **added}}


def _probes(startup_seconds: int) -> Manifest:
    def probe(period: int, failures: int, timeout: int) -> Manifest:
        return {
            "httpGet": {"path": "/health", "port": PORT_HTTP},
            "periodSeconds": period,
            "timeoutSeconds": timeout,
            "failureThreshold": failures,
        }

    return {
        "startupProbe": probe(_PROBE_SECONDS, -(-startup_seconds // _PROBE_SECONDS), 5),
        "readinessProbe": probe(5, 2, 5),
        # /health waits for the engine's event loop, which a long step may block: only a minute means that it hangs.
        "livenessProbe": probe(10, 6, 10),
    }
