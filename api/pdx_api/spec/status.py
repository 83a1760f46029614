"""The status of a PDDeployment: what is in force and what was found. The operator writes it."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints, computed_field

from pdx_api.names import ConditionType, Mode, Order
from pdx_api.spec.fields import ListMap, Part

Count = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
Short = Annotated[str, StringConstraints(max_length=512)]
Time = Annotated[str, StringConstraints(max_length=32), Field(json_schema_extra={"format": "date-time"})]
Generation = Annotated[int, Field(strict=True, ge=0, json_schema_extra={"format": "int64"})]


class StatusPart(Part):
    """A part of the status. Read back, it may hold what is computed, or what a later version has written."""

    model_config = ConfigDict(extra="ignore")


class GatewayStatus(StatusPart):
    """How many gateway pods there are."""

    desired: Count = Field(description="Number of pods that are wanted.")
    ready: Count = Field(description="Number of pods that serve.")


class PoolStatus(StatusPart):
    """How many engines of one role there are."""

    desired: Count = Field(description="Number of engines that are wanted.")
    ready: Count = Field(description="Number of engines that serve, of all revisions.")
    revision: Short | None = Field(default=None, description="Revision of the engines that are wanted.")

    @computed_field(description="ready/desired, for people.")  # type: ignore[prop-decorator]
    @property
    def summary(self) -> Annotated[str, StringConstraints(max_length=32)]:
        """What `kubectl get pdd` shows."""
        return f"{self.ready}/{self.desired}"


class Condition(StatusPart):
    """One thing that is true of the object, false, or not known."""

    type: ConditionType = Field(description="What the condition speaks of.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it is so.")
    reason: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        description="Why, as one word for programs."
    )
    message: Annotated[str, StringConstraints(max_length=32_768)] = Field(
        description="Why, and what can be done, as a sentence for people."
    )
    observed_generation: Generation = Field(description="Generation of the spec that it speaks of.")
    last_transition_time: Time = Field(description="When status last changed.")


class Status(StatusPart):
    """What is in force and what was found."""

    observed_generation: Generation | None = Field(
        default=None, description="Generation of the spec that this status speaks of."
    )
    url: Short | None = Field(default=None, description="Where the gateway serves, inside the cluster.")
    mode: Mode | None = Field(default=None, description="The mode in force.")
    connector: Short | None = Field(default=None, description="The connector in force; none in mode Aggregated.")
    order: Order | None = Field(default=None, description="The order in force; none in mode Aggregated.")
    image: Short | None = Field(default=None, description="The engines' image in force.")
    revision: Short | None = Field(
        default=None, description="Hash of all that P and D must agree on; only engines of one revision pair."
    )
    prefill: PoolStatus | None = Field(default=None, description="The engines that prefill.")
    decode: PoolStatus | None = Field(default=None, description="The engines that decode.")
    aggregated: PoolStatus | None = Field(default=None, description="The engines of mode Aggregated.")
    gateway: GatewayStatus | None = Field(default=None, description="The gateway's pods.")
    conditions: Annotated[list[Condition], Field(max_length=16), ListMap("type")] | None = Field(
        default=None, description="What is true of the object: Ready, Progressing, Degraded, KVTransferVerified."
    )
