"""Which lists of Kubernetes are sets of named things, and what names their elements.

Facts: the patchStrategy and patchMergeKey tags of PodTemplateSpec in k8s.io/api v0.36 `core/v1/types.go`. A list that
is not here (args, tolerations, capabilities) is one value. Inside a pod template a field's name says which list it is.
"""

from collections.abc import Mapping
from typing import Final

POD_TEMPLATE: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
    "resourceClaims": "name",
}

UNIONS: Final = frozenset({"volumes", "resourceClaims"})
"""Lists whose elements are one thing of several kinds (patchStrategy retainKeys): naming a kind drops the other."""

OBJECT: Final[Mapping[str, Mapping[str, str]]] = {
    "Deployment": {**POD_TEMPLATE, "ownerReferences": "uid"},
    # Service ports are named by port and protocol; those of PDX are all TCP.
    "Service": {"ports": "port", "ownerReferences": "uid"},
}
"""Kind -> the same for a whole object. Elsewhere only owners are a set: a policy's rules are one value."""

OTHER_OBJECT: Final[Mapping[str, str]] = {"ownerReferences": "uid"}
