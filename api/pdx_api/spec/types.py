"""The PDDeployment: every field with its default, unit and effect. CRD, reference and CLI derive from it."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from pdx_api.connectors import choose
from pdx_api.connectors.base import Connector
from pdx_api.names import Mode, Order, Role
from pdx_api.rule import Rule
from pdx_api.rules.routing_rules import REQUEST_RULES
from pdx_api.rules.spec_rules import (
    FLAG_IS_FREE,
    FLAG_IS_NOT_SHARED,
    FLAG_IS_POSSIBLE,
    POOL_RULES,
    RESOURCES_RULES,
    SPEC_RULES,
    VARIABLE_IS_NOT_SHARED,
)
from pdx_api.spec.fields import (
    Annotations,
    Argument,
    CountOrPercentage,
    Flag,
    Labels,
    ListMap,
    Part,
    Quantities,
    Text,
    matching,
)
from pdx_api.spec.kv_transfer import KVTransfer
from pdx_api.spec.model import Model
from pdx_api.spec.overlay import EnginePodTemplate, GatewayPodTemplate
from pdx_api.spec.routing import EngineKey, GatewayAuth, GatewayLimits, GatewayLogs, Routing

NAME_RULE: Final = matching(
    r"^[a-z]([-a-z0-9]{0,39}[a-z0-9])?$",
    "write at most 41 lower-case letters, digits and -, with a letter first and no - at the end",
)
# The rule comes first, so that a name of any length gets its sentence; the limit bounds the rule's cost (CEL).
Name = Annotated[str, NAME_RULE, StringConstraints(max_length=253)]
"""A DNS label. It is short enough that the names of children, which contain it, are labels too."""
Args = Annotated[list[Annotated[Argument, FLAG_IS_FREE, FLAG_IS_POSSIBLE]], Field(max_length=64)]
PoolArgs = Annotated[
    list[Annotated[Argument, FLAG_IS_FREE, FLAG_IS_POSSIBLE, FLAG_IS_NOT_SHARED]], Field(max_length=64)
]


class EnvVar(Part):
    """One environment variable of an engine."""

    name: Annotated[
        str,
        StringConstraints(max_length=256),
        matching(r"^[A-Za-z_][A-Za-z0-9_]*$", "write a variable's name: letters, digits and _, no digit first"),
    ] = Field(description="Name of the variable.")
    value: Annotated[str, StringConstraints(max_length=8192)] = Field(
        description="Its value. References to other variables are not expanded."
    )


Env = Annotated[list[EnvVar], Field(max_length=64), ListMap("name")]
PoolEnv = Annotated[list[Annotated[EnvVar, VARIABLE_IS_NOT_SHARED]], Field(max_length=64), ListMap("name")]


class Engine(Part):
    """vLLM's settings for both roles. Engines with different settings cannot pair."""

    image: Text = Field(
        default="vllm/vllm-openai:v0.32.0",
        description="Container image of the engines. P and D need the same vLLM version, which its KV handshake "
        "compares. `pdx up` uses the installed vLLM instead.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="When the image is pulled. Default: Kubernetes' default for the image's tag."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto", description="Type of weights and activations (--dtype)."
    )
    max_model_len: Annotated[int, Field(strict=True, ge=1, le=16_777_216)] | None = Field(
        default=None, description="Longest prompt plus answer, in tokens (--max-model-len). Default: the model's."
    )
    kv_cache_dtype: Text | None = Field(
        default=None, description="Type of the KV cache (--kv-cache-dtype). Default: the model's."
    )
    block_size: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = Field(
        default=None,
        description="Tokens in one KV block (--block-size). Default: vLLM's default for the device (CPU 128).",
    )
    args: Args = Field(default=[], description="Further flags of `vllm serve` for both roles, one list entry each.")
    env: Env = Field(default=[], description="Environment of both roles.")
    shutdown_seconds: Annotated[int, Field(strict=True, ge=0, le=3600)] = Field(
        default=60, description="Seconds that an engine has to finish its requests when it is stopped."
    )
    api_key_secret_ref: EngineKey | None = Field(
        default=None,
        description="The API key that engines require (VLLM_API_KEY) and the gateway sends. Engines read it when they "
        "start. Default: none; the gateway forwards the client's Authorization. Not for `pdx up`.",
    )


class Resources(Part):
    """Compute resources of one pod, as in Kubernetes. `pdx up` does not limit processes."""

    rules: ClassVar[tuple[Rule, ...]] = RESOURCES_RULES

    requests: Quantities = Field(default={}, description="Resources that the scheduler reserves.")
    limits: Quantities = Field(default={}, description="Resources that the pod may use, for example nvidia.com/gpu: 1.")


class Parallelism(Part):
    """The devices of one node that one engine uses."""

    tensor: Annotated[int, Field(strict=True, ge=1, le=16)] = Field(
        default=1,
        description="Devices that share each layer (--tensor-parallel-size). Prefill's number must divide decode's, or "
        "the reverse.",
    )
    nodes: Annotated[
        int,
        Field(strict=True, ge=1, le=64),
        Rule(
            "self == 1",
            "this version does not support multi-node engines; write nodes: 1",
            lambda nodes: nodes == 1,
        ),
    ] = Field(default=1, description="Nodes of one engine. This version supports 1 only.")


class ChunkedPrefill(Part):
    """How long prompts are divided into chunks, so that decoding continues between them."""

    enabled: Flag = Field(default=True, description="False: each prompt is prefilled in one step.")
    max_batched_tokens: Annotated[int, Field(strict=True, ge=1, le=16_777_216)] | None = Field(
        default=None,
        description="Tokens in one step, at most (--max-num-batched-tokens). A small value keeps inter-token latency "
        "even, a large one finishes prompts sooner. Default: vLLM's default for the device.",
    )


class Disruption(Part):
    """How many pods Kubernetes may evict, for example to empty a node."""

    max_unavailable: CountOrPercentage = Field(
        default=1, description="Pods that may be missing, at most: a number, or a percentage of the replicas."
    )


class Pool(Part):
    """The engines of one role, which are equal."""

    rules: ClassVar[tuple[Rule, ...]] = POOL_RULES

    replicas: Annotated[int, Field(strict=True, ge=0, le=1024)] = Field(default=1, description="Number of engines.")
    resources: Resources = Field(default=Resources(), description="Compute resources of one engine.")
    parallelism: Parallelism = Field(default=Parallelism(), description="The devices of one engine.")
    chunked_prefill: ChunkedPrefill = Field(
        default=ChunkedPrefill(), description="How long prompts are divided into chunks."
    )
    args: PoolArgs = Field(default=[], description="Further flags of `vllm serve` for this role, after engine.args.")
    env: PoolEnv = Field(default=[], description="Environment of this role; overrides engine.env.")
    pod_template: EnginePodTemplate | None = Field(
        default=None,
        description="Strategic merge patch of the pod template of this role: node selectors, tolerations, volumes, "
        "pull secrets. vLLM's container is called engine. Not for `pdx up`.",
    )
    disruption: Disruption = Field(default=Disruption(), description="How many engines Kubernetes may evict at a time.")


class GatewayService(Part):
    """The gateway's Service."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="Type of the Service, as in Kubernetes."
    )
    annotations: Annotations = Field(default={}, description="Annotations of the Service, for load balancers.")


class Gateway(Part):
    """The gateway in front of the engines."""

    replicas: Annotated[int, Field(strict=True, ge=0, le=64)] = Field(
        default=1, description="Number of gateway pods, which are independent. `pdx up` runs one."
    )
    autoscaled: Flag = Field(
        default=False,
        description="True: a HorizontalPodAutoscaler of the gateway's Deployment sets the number of replicas.",
    )
    workers: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(
        default=1, description="Processes of one gateway that share its port. Each uses one core."
    )
    image: Text | None = Field(default=None, description="Image of the gateway. Default: the operator's image.")
    resources: Resources = Field(default=Resources(), description="Compute resources of one gateway pod.")
    service: GatewayService = Field(default=GatewayService(), description="The gateway's Service.")
    limits: GatewayLimits = Field(default=GatewayLimits(), description="The limits for clients.")
    logs: GatewayLogs = Field(default=GatewayLogs(), description="The gateway's log.")
    auth: GatewayAuth | None = Field(default=None, description="The clients that may use the gateway. Default: all.")
    pod_template: GatewayPodTemplate | None = Field(
        default=None,
        description="Strategic merge patch of the gateway's pod template. The gateway's container is called gateway.",
    )
    disruption: Disruption = Field(
        default=Disruption(), description="How many gateway pods Kubernetes may evict at a time."
    )


class Rollout(Part):
    """How engines of an old revision are replaced. Percentages are of each role's replicas; maxSurge is rounded up,
    maxUnavailable down. If both result in 0, one engine may be missing."""

    max_surge: CountOrPercentage = Field(
        default="25%",
        description="Engines of a role beyond its replicas during a rollout. 0: for clusters without spare devices.",
    )
    max_unavailable: CountOrPercentage = Field(
        default=0, description="Engines of a role that may be missing during a rollout."
    )


class ScrapeSource(Part):
    """Pods that may read metrics. At least one label is needed."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(has(self.namespaceLabels) && self.namespaceLabels.size() > 0)"
            " || (has(self.podLabels) && self.podLabels.size() > 0)",
            "an entry without labels would admit every pod; write podLabels or namespaceLabels",
            lambda source: bool(source.namespace_labels or source.pod_labels),
        ),
    )

    namespace_labels: Labels = Field(
        default={},
        description="Labels of the pods' namespace, for example kubernetes.io/metadata.name: monitoring. "
        "Default: the namespace of the object.",
    )
    pod_labels: Labels = Field(default={}, description="Labels of the pods. Default: all pods of these namespaces.")


class Observability(Part):
    """Access to metrics."""

    scrape_from: Annotated[list[ScrapeSource], Field(max_length=16)] = Field(
        default=[],
        description="Further pods that may reach the metrics ports of engines and gateway. An engine answers metrics "
        "on the port of its inference API, so these pods may also send it requests.",
    )


class Spec(Part):
    """The desired state."""

    rules: ClassVar[tuple[Rule, ...]] = (*SPEC_RULES, *REQUEST_RULES)

    mode: Mode = Field(
        default=Mode.DISAGGREGATED,
        description="Disaggregated: prefill and decode on different engines. Aggregated: one pool does both, with "
        "chunked prefill; no KV moves.",
    )
    model: Model = Field(description="The model that is served.")
    engine: Engine = Field(default=Engine(), description="vLLM's settings for both roles.")
    kv_transfer: KVTransfer = Field(default=KVTransfer(), description="How KV moves from prefill to decode.")
    prefill: Pool | None = Field(default=None, description="The prefill engines; required in mode Disaggregated.")
    decode: Pool | None = Field(default=None, description="The decode engines; required in mode Disaggregated.")
    aggregated: Pool | None = Field(
        default=None,
        description="The engines of mode Aggregated. Default: decode's settings, with as many replicas as prefill and "
        "decode together.",
    )
    routing: Routing = Field(
        default=Routing(),
        description="How the gateway chooses engines, and what it does when one fails or all are busy.",
    )
    gateway: Gateway = Field(default=Gateway(), description="The gateway.")
    rollout: Rollout = Field(default=Rollout(), description="How engines of an old revision are replaced.")
    observability: Observability = Field(default=Observability(), description="Access to metrics.")

    @property
    def connector(self) -> Connector:
        """The connector in force."""
        custom = self.kv_transfer.custom
        return choose(self.kv_transfer.connector, self.kv_transfer.order)[0] if custom is None else custom.connector

    @property
    def protocol(self) -> str:
        """The protocol of a user's connector, for the gateway; empty for every other connector."""
        return self.kv_transfer.custom.connector.protocol if self.kv_transfer.custom is not None else ""

    @property
    def order(self) -> Order:
        """The order in force."""
        return choose(self.kv_transfer.connector, self.kv_transfer.order)[1]

    def pools(self) -> dict[Role, Pool]:
        """The pools of this mode."""
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

    name: Name = Field(description="Name of the object. Its children's names contain it.")
    namespace: str | None = Field(default=None, description="Namespace. Default: the client's.")


class PDDeployment(Part):
    """Prefill and decode engines of one model, the KV connector between them, and their gateway."""

    api_version: Literal["pdx.dev/v1alpha1"] = Field(default="pdx.dev/v1alpha1", description="pdx.dev/v1alpha1.")
    kind: Literal["PDDeployment"] = Field(default="PDDeployment", description="PDDeployment.")
    metadata: Metadata = Field(description="Kubernetes' object metadata.")
    spec: Spec = Field(description="The desired state.")
