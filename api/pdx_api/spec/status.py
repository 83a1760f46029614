"""The status of a PDDeployment, which the operator writes."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from pdx_api.spec.fields import ListMap, Part, model_of

Count = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
ConditionName = Annotated[
    str,
    StringConstraints(
        max_length=316,
        pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
        r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
    ),
]
"""The pattern of Kubernetes' metav1.Condition: other writers and later versions add types of their own."""
Short = Annotated[str, StringConstraints(max_length=512)]
Time = Annotated[str, StringConstraints(max_length=32), Field(json_schema_extra={"format": "date-time"})]
Generation = Annotated[int, Field(strict=True, ge=0, json_schema_extra={"format": "int64"})]


class StatusPart(Part):
    """A part of the status. Parsing ignores fields of other versions."""

    model_config = ConfigDict(extra="ignore")


class GatewayStatus(StatusPart):
    """Numbers of gateway pods."""

    desired_replicas: Count = Field(description="Desired number of gateway pods.")
    ready_replicas: Count = Field(description="Number of ready gateway pods.")
    ready: Short | None = Field(default=None, description="Both numbers, as READY/DESIRED.")


class RoleStatus(StatusPart):
    """Numbers of engines of one role."""

    role: Short = Field(description="The role: prefill, decode or aggregated.")
    desired_replicas: Count = Field(description="Desired number of engines.")
    replicas: Count = Field(description="Engines that exist, of all revisions, including those that are terminating.")
    ready_replicas: Count = Field(description="Ready engines, of all revisions.")
    updated_replicas: Count = Field(description="Engines of the revision below that exist.")
    revision: Short = Field(description="Revision of the desired engines.")
    ready: Short | None = Field(
        default=None, description="The numbers of ready and of desired engines, as READY/DESIRED."
    )


class Condition(StatusPart):
    """One condition of the object, as in Kubernetes."""

    type: ConditionName = Field(description="Type of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition is true.")
    reason: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        description="The reason, as one machine-readable word."
    )
    message: Annotated[str, StringConstraints(max_length=32_768)] = Field(
        description="The reason and the remedy, as a human-readable sentence."
    )
    observed_generation: Generation = Field(description="Generation of the spec that the condition describes.")
    last_transition_time: Time = Field(description="Time of the last change of status.")


class Status(StatusPart):
    """The state of the object, which the operator observes."""

    observed_generation: Generation | None = Field(
        default=None, description="Generation of the spec that this status describes."
    )
    reason: Short | None = Field(
        default=None,
        description="The reason of the condition that is not as it should be, the most important one first: Degraded, "
        "Ready, KVTransferVerified. None: nothing is wrong.",
    )
    operator: Short | None = Field(
        default=None,
        description="The operator that writes this object, as NAMESPACE/NAME of its Lease. The annotation "
        "pdx.dev/operator assigns the object to another operator.",
    )
    url: Short | None = Field(
        default=None,
        description="URL of the gateway: with gateway.httpRoute its first host name, otherwise inside the cluster.",
    )
    mode: Short | None = Field(default=None, description="The mode in force.")
    connector: Short | None = Field(default=None, description="The connector in force; none in mode Aggregated.")
    order: Short | None = Field(default=None, description="The order in force; none in mode Aggregated.")
    image: Short | None = Field(default=None, description="The engines' image in force.")
    revision: Short | None = Field(
        default=None,
        description="Hash of everything that must be equal on prefill and decode engines. Only engines of one revision "
        "pair.",
    )
    roles: Annotated[list[RoleStatus], Field(max_length=16), ListMap("role")] | None = Field(
        default=None, description="The engines, by role."
    )
    gateway: GatewayStatus | None = Field(default=None, description="The gateway's pods.")
    conditions: Annotated[list[Condition], Field(max_length=16), ListMap("type")] | None = Field(
        default=None, description="The conditions: Available, Ready, Progressing, Degraded, KVTransferVerified."
    )


def declared(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status without the fields that this version does not have."""
    return _declared(Status, status)


def _declared(model: type[BaseModel], value: Mapping[str, Any]) -> dict[str, Any]:
    annotations = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    return {name: _inner(annotations[name], entry) for name, entry in value.items() if name in annotations}


def _inner(annotation: Any, value: Any) -> Any:
    model = model_of(annotation)
    if model is None:
        return value
    if isinstance(value, Mapping):
        return _declared(model, value)
    return [_inner(model, entry) for entry in value] if isinstance(value, list) else value
