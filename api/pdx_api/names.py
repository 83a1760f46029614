"""The names that several programs share: API group, labels, annotations, ports, names of children, enums."""

from enum import StrEnum
from typing import Final

GROUP: Final = "pdx.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "pdx.dev/v1alpha1"
KIND: Final = "PDDeployment"
PLURAL: Final = "pddeployments"
SHORT_NAME: Final = "pdd"
DEFAULT_NAMESPACE: Final = "default"
FIELD_MANAGER: Final = "pdx-operator"
"""The operator's field manager for server-side apply."""

LABEL_DEPLOYMENT: Final = f"{GROUP}/deployment"
LABEL_ROLE: Final = f"{GROUP}/role"
ROLE_GATEWAY: Final = "gateway"
"""Value of the role label on the gateway's objects; on an engine's objects it is a `Role`."""
LABEL_REVISION: Final = f"{GROUP}/revision"
LABEL_SERVICE: Final = f"{GROUP}/service"
"""Label: the side service that an object belongs to."""
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_APP_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_PART_OF: Final = "app.kubernetes.io/part-of"
MANAGED_BY: Final = "pdx"
"""Value of managed-by and part-of."""
RECOMMENDED_LABELS: Final = (LABEL_APP_NAME, LABEL_INSTANCE, LABEL_COMPONENT, LABEL_PART_OF, LABEL_MANAGED_BY)
OPERATOR_LABELS: Final = {LABEL_PART_OF: MANAGED_BY, LABEL_COMPONENT: "operator"}
"""Labels that the chart puts on the operator's pods, among others."""
ANNOTATION_CONNECTOR: Final = f"{GROUP}/connector"
ANNOTATION_ORDER: Final = f"{GROUP}/order"
ANNOTATION_PROTOCOL: Final = f"{GROUP}/protocol"
"""Annotation: the protocol of a user's connector (`connectors.custom`)."""
ANNOTATION_PATCHES: Final = f"{GROUP}/patch-releases"
"""Annotation: `any` if engines of different patch releases of vLLM may pair, whatever the connector requires."""
ANNOTATION_RANKS: Final = f"{GROUP}/data-parallel"
"""Annotation: the number of data-parallel ranks of an engine. Absent: 1."""
ANNOTATION_SEQUENCES: Final = f"{GROUP}/max-num-seqs"
"""Annotation: how many requests each rank of an engine runs at a time (`--max-num-seqs`). Absent: not known."""
ANNOTATION_FILE: Final = f"{GROUP}/file-"
"""Prefix of annotations: the file's name follows, the value is its content, and the pod mounts it."""
ANNOTATION_INPUTS: Final = f"{GROUP}/inputs"
"""Annotation: hash of the parts of the spec that a pod template depends on."""
ANNOTATION_TEMPLATE: Final = f"{GROUP}/template"
"""Annotation: the pinned pod template as JSON. It stays in force while its inputs are equal."""
ANNOTATION_APPLIED: Final = f"{GROUP}/applied"
"""Annotation: hash of the manifest that the operator applied."""

ANNOTATION_WIRING: Final = f"{GROUP}/wiring"
"""Annotation: the wiring number of the connector; engines with different numbers never pair. Absent: 1."""
ANNOTATION_OPERATOR: Final = f"{GROUP}/operator"
"""Annotation of a PDDeployment: the operator that shall write it, as NAMESPACE/NAME of its Lease."""
GATEWAY_ROLE: Final = "pdx-gateway"
"""The chart's ClusterRole (in a namespaced install: a Role) with the permissions of gateways."""

ENGINE_CONTAINER: Final = "engine"
"""Name of the container that runs vLLM in an engine's pod."""
GATEWAY_CONTAINER: Final = "gateway"
"""Name of the container that runs the gateway in its pod."""
SERVICE_CONTAINER: Final = "service"
"""Name of the container that runs a side service in its pod."""
CODE_MOUNT: Final = "/etc/pdx/connector"
"""Mount path of spec.kvTransfer.custom.code.configMap in an engine's pod."""
FILES_MOUNT: Final = "/etc/pdx/files"
"""Mount path of the connector's files in an engine's pod."""
MODEL_MOUNT: Final = "/models"
"""Mount path of spec.model.source.persistentVolumeClaim in an engine's pod."""

STORAGE_MOUNT: Final = "/kv"
"""Mount path of spec.kvTransfer.storage in an engine's pod."""

PORT_HTTP: Final = "http"
"""Name of the HTTP API's port, of engines and gateway."""
PORT_ADMIN: Final = "admin"
"""Name of the gateway's admin port."""

PORT_METRICS: Final = "metrics"
"""Name of the port on which a side service answers /metrics, and nothing else."""

CLIENT_KEYS_FLAG: Final = "--client-keys"
"""Flag of the gateway: file with the API keys of clients."""
ENGINE_KEY_FLAG: Final = "--engine-key"
"""Flag of the gateway: file with the API key of the engines."""

TLS_CERTIFICATE_FLAG: Final = "--tls-certificate"
"""Flag of the gateway: file with the certificate of the serving port."""
TLS_KEY_FLAG: Final = "--tls-key"
"""Flag of the gateway: file with the certificate's private key."""

ENGINE_PORT: Final = 8000
"""Port of vLLM's HTTP API in an engine pod."""
GATEWAY_PORT: Final = 8080
"""Port on which the gateway serves clients."""
GATEWAY_SERVICE_PORT: Final = 80
"""Port of the gateway's Service."""
GATEWAY_TLS_PORT: Final = 443
"""Port of the gateway's Service with TLS."""
ADMIN_PORT: Final = 9090
"""Port on which the gateway answers /metrics and /pdx/state."""


class Mode(StrEnum):
    """Whether prefill and decode run on different engines."""

    DISAGGREGATED = "Disaggregated"
    AGGREGATED = "Aggregated"


class Role(StrEnum):
    """What an engine does for a request."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"


class Order(StrEnum):
    """Which of a request's two legs is sent first."""

    PREFILL_FIRST = "PrefillFirst"
    DECODE_FIRST = "DecodeFirst"
    CONCURRENT = "Concurrent"


class PrefillFailure(StrEnum):
    """What the gateway does when P fails a request."""

    RETRY = "Retry"
    """Another P, and D alone when no attempt is left."""
    LOCAL = "Local"
    """D alone at once."""
    FAIL = "Fail"
    """The client gets an error."""


class Split(StrEnum):
    """Whether the gateway splits requests."""

    AUTO = "Auto"
    """Those that can be split, where KV moves."""
    NEVER = "Never"
    """None: one engine serves each request."""


class Policy(StrEnum):
    """How the gateway chooses among the engines of one role."""

    EXPECTED_WAIT = "ExpectedWait"
    """The engine where the prompt's prefill costs least time: its own wait, and that of the prompts that it delays."""
    LEAST_REQUESTS = "LeastRequests"
    """The engine with the fewest requests of this gateway."""
    LEAST_ITL = "LeastITL"
    """The engine with the least inter-token latency by its batch, unless its KV cache is nearly full."""
    LEAST_LOAD = "LeastLoad"
    """By the requests of this gateway, and the queue and KV use that the engine reports."""
    PREFIX_AFFINITY = "PrefixAffinity"
    """Prompts with the same beginning to the same engine, unless it is overloaded."""
    SESSION_AFFINITY = "SessionAffinity"
    """Requests of one session (header x-session-id) to the same engine, unless it is overloaded."""


class LogFormat(StrEnum):
    """How a program writes its log."""

    TEXT = "Text"
    JSON = "JSON"
    """One object on each line."""


class ConditionType(StrEnum):
    """The types of `status.conditions`."""

    AVAILABLE = "Available"
    """Requests are answered."""
    READY = "Ready"
    """Everything is as specified."""
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    KV_TRANSFER_VERIFIED = "KVTransferVerified"


CONDITION_MANAGED: Final = "Managed"
"""The condition that an operator writes into an object whose own operator seems to be gone. The owner removes it."""


def engines_name(deployment: str, role: Role, revision: str) -> str:
    """Name of the Deployment of one role in one revision."""
    return f"{deployment}-{role}-{revision}"


def service_name(deployment: str, service: str, revision: str) -> str:
    """Name of the Deployment and of the Service of one side service in one revision."""
    return f"{deployment}-{service}-{revision}"


def pool_name(deployment: str, role: Role) -> str:
    """Name of a role's PodDisruptionBudget, one for all revisions."""
    return f"{deployment}-{role}"


def gateway_name(deployment: str) -> str:
    """Name of each of the gateway's objects."""
    return f"{deployment}-gateway"


def services_policy_name(deployment: str) -> str:
    """Name of the NetworkPolicy in front of the side services."""
    return f"{deployment}-services"


def policy_name(deployment: str) -> str:
    """Name of the engines' NetworkPolicy."""
    return f"{deployment}-engines"
