"""The status of a PDDeployment, which the operator writes."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints, computed_field

from pdx_api.names import ConditionType, Mode, Order
from pdx_api.spec.fields import ListMap, Part

Count = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
Short = Annotated[str, StringConstraints(max_length=512)]
Time = Annotated[str, StringConstraints(max_length=32), Field(json_schema_extra={"format": "date-time"})]
Generation = Annotated[int, Field(strict=True, ge=0, json_schema_extra={"format": "int64"})]


class StatusPart(Part):
    """A part of the status. Parsing ignores other fields: computed ones, and those of later versions."""

    model_config = ConfigDict(extra="ignore")


class GatewayStatus(StatusPart):
    """Numbers of gateway pods."""

    desired: Count = Field(description="Desired number of gateway pods.")
    ready: Count = Field(description="Number of ready gateway pods.")


class PoolStatus(StatusPart):
    """Numbers of engines of one role."""

    desired: Count = Field(description="Desired number of engines.")
    ready: Count = Field(description="Number of ready engines, of all revisions.")
    revision: Short | None = Field(default=None, description="Revision of the desired engines.")

    @computed_field(description="ready/desired, for people.")  # type: ignore[prop-decorator]
    @property
    def summary(self) -> Annotated[str, StringConstraints(max_length=32)]:
        """The text in the columns of `kubectl get pdd`."""
        return f"{self.ready}/{self.desired}"


class Condition(StatusPart):
    """One condition of the object, as in Kubernetes."""

    type: ConditionType = Field(description="Type of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition is true.")
    reason: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        description="The reason, as one word for programs."
    )
    message: Annotated[str, StringConstraints(max_length=32_768)] = Field(
        description="The reason and the remedy, as a sentence for people."
    )
    observed_generation: Generation = Field(description="Generation of the spec that the condition describes.")
    last_transition_time: Time = Field(description="Time of the last change of status.")


class Status(StatusPart):
    """The state of the object, which the operator observes."""

    observed_generation: Generation | None = Field(
        default=None, description="Generation of the spec that this status describes."
    )
    url: Short | None = Field(default=None, description="URL of the gateway inside the cluster.")
    mode: Mode | None = Field(default=None, description="The mode in force.")
    connector: Short | None = Field(default=None, description="The connector in force; none in mode Aggregated.")
    order: Order | None = Field(default=None, description="The order in force; none in mode Aggregated.")
    image: Short | None = Field(default=None, description="The engines' image in force.")
    revision: Short | None = Field(
        default=None, description="Hash of everything that must be equal on P and D. Only engines of one revision pair."
    )
    prefill: PoolStatus | None = Field(default=None, description="The prefill engines.")
    decode: PoolStatus | None = Field(default=None, description="The decode engines.")
    aggregated: PoolStatus | None = Field(default=None, description="The engines of mode Aggregated.")
    gateway: GatewayStatus | None = Field(default=None, description="The gateway's pods.")
    conditions: Annotated[list[Condition], Field(max_length=16), ListMap("type")] | None = Field(
        default=None, description="The conditions: Ready, Progressing, Degraded, KVTransferVerified."
    )
