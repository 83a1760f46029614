"""Which lists in Kubernetes objects have named elements, and which field is the name.

Facts: the patchStrategy and patchMergeKey tags of PodTemplateSpec in k8s.io/api v0.36 `core/v1/types.go`. Any other
list (args, tolerations, capabilities) is one value. Inside a pod template the name of a field identifies its list.
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
"""Lists whose elements are unions (patchStrategy retainKeys): an overlay with another member drops the first one."""

OBJECT: Final[Mapping[str, Mapping[str, str]]] = {
    "Deployment": {**POD_TEMPLATE, "ownerReferences": "uid"},
    # Service ports are identified by port and protocol; all ports of PDX are TCP.
    "Service": {"ports": "port", "ownerReferences": "uid"},
}
"""Merge keys of a whole object, by kind."""

OTHER_OBJECT: Final[Mapping[str, str]] = {"ownerReferences": "uid"}
"""Merge keys of objects of any other kind: only owners are named, and for example a policy's rules are one value."""
