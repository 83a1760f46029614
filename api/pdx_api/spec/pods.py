"""What the spec says of all pods and children: environment variables, RDMA devices, labels, annotations."""

from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, StringConstraints

from pdx_api.rule import Rule, matching
from pdx_api.rules.spec_rules import VARIABLE_IS_NOT_SHARED
from pdx_api.spec.fields import (
    Annotations,
    Flag,
    Labels,
    ListMap,
    ObjectName,
    Part,
    ResourceName,
    SecretKey,
    Text,
)

SEARCH_PATH: Final = "PYTHONPATH"
"""A list of directories, to which PDX adds the code of a custom connector."""


class KeyReference(Part):
    """One value of a Secret or ConfigMap in the namespace of the object."""

    name: ObjectName = Field(description="Name of the Secret or ConfigMap.")
    key: SecretKey = Field(description="Key of the value.")
    optional: Flag | None = Field(default=None, description="True: the engine also starts if the value does not exist.")


class FieldReference(Part):
    """A field of the pod."""

    field_path: Text = Field(description="Path of the field, for example spec.nodeName.")


class ResourceReference(Part):
    """A resource of the container."""

    container_name: Text | None = Field(default=None, description="Name of the container. Default: the engine's.")
    resource: Text = Field(description="The resource, for example limits.memory.")


class EnvSource(Part):
    """Where the value of a variable comes from, as in Kubernetes."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(has(self.secretKeyRef) ? 1 : 0) + (has(self.configMapKeyRef) ? 1 : 0)"
            " + (has(self.fieldRef) ? 1 : 0) + (has(self.resourceFieldRef) ? 1 : 0) == 1",
            "write one of secretKeyRef, configMapKeyRef, fieldRef and resourceFieldRef",
            lambda source: (
                sum(
                    each is not None
                    for each in (
                        source.secret_key_ref,
                        source.config_map_key_ref,
                        source.field_ref,
                        source.resource_field_ref,
                    )
                )
                == 1
            ),
        ),
    )

    secret_key_ref: KeyReference | None = Field(default=None, description="A value of a Secret.")
    config_map_key_ref: KeyReference | None = Field(default=None, description="A value of a ConfigMap.")
    field_ref: FieldReference | None = Field(default=None, description="A field of the pod.")
    resource_field_ref: ResourceReference | None = Field(default=None, description="A resource of the container.")

    def manifest(self) -> dict[str, Any]:
        """The source as in a container."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class EnvVar(Part):
    """One environment variable of an engine."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.value) != has(self.valueFrom)",
            "write either value or valueFrom",
            lambda variable: (variable.value is None) != (variable.value_from is None),
        ),
        Rule(
            f"self.name != '{SEARCH_PATH}' || !has(self.valueFrom)",
            f"PDX adds directories to {SEARCH_PATH}; write its value",
            lambda variable: variable.name != SEARCH_PATH or variable.value_from is None,
        ),
    )

    name: Annotated[
        str,
        StringConstraints(max_length=256),
        matching(r"^[A-Za-z_][A-Za-z0-9_]*$", "write a variable's name: letters, digits and _, no digit first"),
    ] = Field(description="Name of the variable.")
    value: Annotated[str, StringConstraints(max_length=8192)] | None = Field(
        default=None, description="Its value. References to other variables are not expanded."
    )
    value_from: EnvSource | None = Field(
        default=None,
        description="Source of the value, as in Kubernetes. `pdx up` uses the variable of its own environment instead.",
    )


Env = Annotated[list[EnvVar], Field(max_length=64), ListMap("name")]
PoolEnv = Annotated[list[Annotated[EnvVar, VARIABLE_IS_NOT_SHARED]], Field(max_length=64), ListMap("name")]

_CHILD_KEYS_ARE_FREE: Final = Rule(
    "self.all(key, !key.startsWith('pdx.dev/') && !key.startsWith('app.kubernetes.io/'))",
    "keys that begin with pdx.dev/ or app.kubernetes.io/ are reserved for PDX; leave them out",
    lambda entries: not any(key.startswith(("pdx.dev/", "app.kubernetes.io/")) for key in entries),
)
ChildLabels = Annotated[Labels, _CHILD_KEYS_ARE_FREE]
ChildAnnotations = Annotated[Annotations, _CHILD_KEYS_ARE_FREE]


class RDMA(Part):
    """RDMA devices of one engine."""

    resource: ResourceName = Field(
        default="rdma/hca", description="Resource of the device plugin, for example rdma/hca or vpc.amazonaws.com/efa."
    )
    count: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(
        default=1,
        description="Devices of one engine. With a plugin for shared devices, 1 means all devices of the resource. "
        "The same resource in resources.limits of a role overrides count for this role.",
    )
    as_root: Flag = Field(
        default=True,
        description="True: engines run as user 0 with the capability IPC_LOCK, which lifts the limit on locked "
        "memory. Namespaces that enforce the Pod Security level baseline reject such pods. False: engines keep their "
        "user, and the nodes' container runtime must allow unlimited locked memory. A change replaces the engines.",
    )
