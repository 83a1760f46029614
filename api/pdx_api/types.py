"""The PDDeployment: every field with its default, unit and consequence. The source of truth for CRD, CLI and docs."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from pdx_api.connectors import choose
from pdx_api.connectors.base import Connector
from pdx_api.names import Mode, Order, Role

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=41)]
"""A DNS label short enough that the names of children, which carry it, stay labels too."""
Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Argument = Annotated[str, StringConstraints(min_length=1, max_length=8192)]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/", max_length=4096)]
Quantity = Annotated[str, StringConstraints(max_length=64)] | Annotated[int, Field(ge=0)]

OWNED_FLAGS = ("--kv-transfer-config", "--host", "--port", "--model", "--served-model-name", "--tensor-parallel-size")
"""vLLM flags that PDX writes itself, so that nobody can mis-wire a pair."""


class Part(BaseModel):
    """A part of the object: camelCase outside, frozen inside, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class ModelSource(Part):
    """Where the weights come from when not from the Hugging Face Hub."""

    path: AbsolutePath = Field(
        description="Absolute path of a model directory in the engine's file system. "
        "Both roles are started with this very string: vLLM refuses KV from an engine started with another."
    )


class Model(Part):
    """What is served."""

    name: Text = Field(
        description="Hub id of the model, for example Qwen/Qwen3-8B; with source.path, only a name. "
        "Clients ask for it under this name unless servedName says otherwise."
    )
    served_name: Text | None = Field(
        default=None, description="The `model` that clients send. Default: the value of name."
    )
    revision: Text | None = Field(
        default=None, description="Branch, tag or commit on the Hub. Default: the Hub's default branch."
    )
    source: ModelSource | None = Field(default=None, description="Default: the Hugging Face Hub, by name.")


class EnvVar(Part):
    """One environment variable of an engine."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)] = Field(
        description="Name of the variable."
    )
    value: Annotated[str, StringConstraints(max_length=8192)] = Field(description="Its value, taken literally.")


Args = Annotated[list[Argument], Field(max_length=64)]
Env = Annotated[list[EnvVar], Field(max_length=64)]


class Engine(Part):
    """vLLM's settings that both roles share: what differs between P and D cannot pair."""

    image: Text = Field(
        default="vllm/vllm-openai:v0.32.0",
        description="Container image of the engines. P and D need one vLLM version: its KV handshake compares it. "
        "`pdx up` uses the installed vLLM instead.",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto", description="Type of weights and activations (--dtype)."
    )
    max_model_len: Annotated[int, Field(ge=1, le=16_777_216)] | None = Field(
        default=None, description="Longest prompt plus answer, in tokens (--max-model-len). Default: the model's own."
    )
    kv_cache_dtype: Text | None = Field(
        default=None, description="Type of the KV cache (--kv-cache-dtype). Default: that of the model."
    )
    block_size: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Tokens in one KV block (--block-size). Default: vLLM's for the device (CPU 128)."
    )
    args: Args = Field(default=[], description="Further flags of `vllm serve` for both roles, one list entry each.")
    env: Env = Field(default=[], description="Environment of both roles.")


class KVTransfer(Part):
    """How KV travels from prefill to decode. Connector and order belong together."""

    connector: Text = Field(
        default="NIXL", description="The KV connector. PDX derives vLLM's class, JSON, env and ports from it."
    )
    order: Order | None = Field(
        default=None,
        description="Which leg is sent first. PrefillFirst: D pulls from P once P has finished. DecodeFirst and "
        "Concurrent: P pushes into blocks that D has allocated. Default: the connector's first order.",
    )
    on_load_failure: Literal["Fail", "Recompute"] = Field(
        default="Fail",
        description="What D does when KV does not arrive. Fail: D answers an error, and the gateway retries and "
        "counts it. Recompute: D prefills by itself, and only latency shows it.",
    )
    config: dict[Annotated[str, StringConstraints(max_length=253)], Any] = Field(
        default={},
        max_length=64,
        description="Connector settings for vLLM's kv_connector_extra_config, for example kv_lease_duration: 30 "
        "(seconds that P keeps finished blocks).",
    )


class Resources(Part):
    """Compute resources of one engine, in Kubernetes' terms. `pdx up` does not limit processes."""

    requests: dict[Text, Quantity] = Field(default={}, max_length=32, description="What the scheduler sets aside.")
    limits: dict[Text, Quantity] = Field(
        default={}, max_length=32, description="The most it may use, for example nvidia.com/gpu: 1."
    )


class Parallelism(Part):
    """How one engine spreads over devices of one node."""

    tensor: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="Devices that share each layer (--tensor-parallel-size)."
    )


class ChunkedPrefill(Part):
    """How long prompts are cut, so that decoding goes on between the pieces."""

    enabled: bool = Field(default=True, description="False prefills every prompt in one step.")
    max_batched_tokens: Annotated[int, Field(ge=1, le=16_777_216)] | None = Field(
        default=None,
        description="Chunk size: most tokens in one step (--max-num-batched-tokens). Small keeps the time between "
        "tokens even, large finishes prompts sooner. Default: vLLM's for the device.",
    )


class Pool(Part):
    """A set of equal engines."""

    replicas: Annotated[int, Field(ge=0, le=1024)] = Field(default=1, description="Number of engines.")
    resources: Resources = Field(default=Resources(), description="Compute resources of one engine.")
    parallelism: Parallelism = Field(default=Parallelism(), description="How one engine spreads over devices.")
    chunked_prefill: ChunkedPrefill = Field(default=ChunkedPrefill(), description="How long prompts are cut.")
    args: Args = Field(default=[], description="Further flags of `vllm serve` for this role, after engine.args.")
    env: Env = Field(default=[], description="Environment of this role; wins over engine.env.")


class Gateway(Part):
    """The gateway in front of the engines."""

    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="Processes that share the port, one core each."
    )


class Spec(Part):
    """What the user wants."""

    mode: Mode = Field(
        default=Mode.DISAGGREGATED,
        description="Disaggregated: prefill and decode on different engines. Aggregated: one pool does both, with "
        "chunked prefill; no KV moves.",
    )
    model: Model = Field(description="What is served.")
    engine: Engine = Field(default=Engine(), description="vLLM's settings that both roles share.")
    kv_transfer: KVTransfer = Field(default=KVTransfer(), description="How KV travels from prefill to decode.")
    prefill: Pool | None = Field(default=None, description="The engines that prefill; needed in mode Disaggregated.")
    decode: Pool | None = Field(default=None, description="The engines that decode; needed in mode Disaggregated.")
    aggregated: Pool | None = Field(
        default=None,
        description="The pool of mode Aggregated. Default: decode's settings with the replicas of prefill and decode "
        "added up, so that both modes use as many engines.",
    )
    gateway: Gateway = Field(default=Gateway(), description="The gateway in front of the engines.")

    @model_validator(mode="after")
    def _pools_are_there(self) -> Self:
        if self.mode is Mode.DISAGGREGATED:
            for role in (Role.PREFILL, Role.DECODE):
                if getattr(self, role) is None:
                    raise ValueError(f"mode Disaggregated needs spec.{role}; write {role}: {{replicas: 1}}")
        elif self.aggregated is None and self.decode is None:
            raise ValueError("mode Aggregated needs spec.aggregated; write aggregated: {replicas: 1}")
        return self

    @model_validator(mode="after")
    def _connector_has_order(self) -> Self:
        choose(self.kv_transfer.connector, self.kv_transfer.order)
        return self

    @model_validator(mode="after")
    def _flags_are_free(self) -> Self:
        for where, args in self._all_args():
            for arg in args:
                flag = arg.split("=", 1)[0].replace("_", "-")
                if any(flag == owned or flag.startswith(f"{owned}.") for owned in OWNED_FLAGS):
                    raise ValueError(f"{where} may not hold {flag}: PDX writes it from the other fields of spec")
        return self

    def _all_args(self) -> list[tuple[str, list[str]]]:
        pools = [(f"spec.{role}.args", pool.args) for role in Role if (pool := getattr(self, role)) is not None]
        return [("spec.engine.args", self.engine.args), *pools]

    @property
    def connector(self) -> Connector:
        """The connector in force."""
        return choose(self.kv_transfer.connector, self.kv_transfer.order)[0]

    @property
    def order(self) -> Order:
        """The order in force."""
        return choose(self.kv_transfer.connector, self.kv_transfer.order)[1]

    def pools(self) -> dict[Role, Pool]:
        """The pools in force in this mode."""
        if self.mode is Mode.DISAGGREGATED:
            return {role: pool for role in (Role.PREFILL, Role.DECODE) if (pool := getattr(self, role)) is not None}
        if self.aggregated is not None:
            return {Role.AGGREGATED: self.aggregated}
        decode = self.decode or Pool()
        replicas = decode.replicas + (self.prefill.replicas if self.prefill else 0)
        return {Role.AGGREGATED: decode.model_copy(update={"replicas": replicas})}


class Metadata(BaseModel):
    """The part of Kubernetes' object metadata that PDX reads."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Name = Field(description="Name of the object; its children carry it.")
    namespace: str | None = Field(default=None, description="Namespace. Default: that of the client.")


class PDDeployment(Part):
    """Prefill and decode engines of one model, the KV connector between them, and their gateway."""

    api_version: Literal["pdx.dev/v1alpha1"] = Field(default="pdx.dev/v1alpha1", description="pdx.dev/v1alpha1.")
    kind: Literal["PDDeployment"] = Field(default="PDDeployment", description="PDDeployment.")
    metadata: Metadata = Field(description="Kubernetes' object metadata.")
    spec: Spec = Field(description="What the user wants.")
