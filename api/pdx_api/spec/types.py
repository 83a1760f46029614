"""The PDDeployment: every field with its default, unit and effect. CRD, reference and CLI derive from it."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from pdx_api.connectors import choose
from pdx_api.connectors.base import Connector
from pdx_api.defaults import ENGINE_DRAIN_SECONDS, STARTUP_SECONDS
from pdx_api.names import Mode, Order, Role
from pdx_api.rule import Rule, matching
from pdx_api.rules.routing_rules import REQUEST_RULES
from pdx_api.rules.spec_rules import (
    FLAG_IS_FREE,
    FLAG_IS_NO_RANK,
    FLAG_IS_NOT_SHARED,
    FLAG_IS_POSSIBLE,
    POOL_RULES,
    RESOURCES_RULES,
    SPEC_RULES,
)
from pdx_api.settings import gateway
from pdx_api.spec.fields import (
    Annotations,
    Argument,
    CountOrPercentage,
    Flag,
    Part,
    Quantities,
    Text,
    without_default,
)
from pdx_api.spec.kv_transfer import KVTransfer
from pdx_api.spec.model import Model
from pdx_api.spec.overlay import EnginePodTemplate, GatewayPodTemplate
from pdx_api.spec.pods import RDMA, ChildAnnotations, ChildLabels, Env, PoolEnv
from pdx_api.spec.routing import (
    SLO,
    EngineKey,
    GatewayAuth,
    GatewayCORS,
    GatewayHTTPRoute,
    GatewayLimits,
    GatewayLogs,
    GatewayTLS,
    Routing,
)
from pdx_api.spec.selectors import ScrapeSource

NAME_RULE: Final = matching(
    r"^[a-z]([-a-z0-9]{0,39}[a-z0-9])?$",
    "write at most 41 lower-case letters, digits and -, with a letter first and no - at the end",
)
# The rule comes first, so that a name of any length gets its sentence; the limit bounds the rule's cost (CEL).
Name = Annotated[str, NAME_RULE, StringConstraints(max_length=253)]
"""A DNS label. It is short enough that the names of children, which contain it, are labels too."""
Args = Annotated[list[Annotated[Argument, FLAG_IS_FREE, FLAG_IS_POSSIBLE, FLAG_IS_NO_RANK]], Field(max_length=64)]
PoolArgs = Annotated[
    list[Annotated[Argument, FLAG_IS_FREE, FLAG_IS_POSSIBLE, FLAG_IS_NO_RANK, FLAG_IS_NOT_SHARED]], Field(max_length=64)
]

ENGINE_VERSION: Final = matching(
    r"^[0-9]{1,3}[.][0-9]{1,3}([.+_-][0-9A-Za-z.+_-]*)?$", "write vLLM's version, for example 0.32.0"
)


class Engine(Part):
    """vLLM's settings for both roles. Engines with different settings cannot pair."""

    image: Text = Field(
        default="vllm/vllm-openai:v0.32.0",
        description="Container image of the engines. Both roles need the same vLLM version, because its KV handshake "
        "compares versions. `pdx up` uses the installed vLLM instead.",
    )
    version: Annotated[str, ENGINE_VERSION, StringConstraints(max_length=64)] | None = Field(
        default=None,
        description="vLLM's version in the image, for example 0.32.0. Default: the image's tag, if its name contains "
        "vllm and the tag is a version from 0.28 to below 1.0. A change replaces no engine.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="When Kubernetes pulls the image. Default: Kubernetes' default for the image's tag."
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
    drain_seconds: Annotated[int, Field(strict=True, ge=0, le=3600)] = Field(
        default=ENGINE_DRAIN_SECONDS,
        description="Seconds that a stopped engine has to finish its requests; a gateway has at least 600. Longer "
        "answers are cut. An engine without requests stops at once. A change replaces the engines. "
        f"Default: {ENGINE_DRAIN_SECONDS}.",
        json_schema_extra=without_default,
    )
    startup_seconds: Annotated[int, Field(strict=True, ge=30, le=86_400)] | None = Field(
        default=None,
        description="Seconds that an engine has to load the model, including downloads. After that it is restarted. "
        f"Default: {STARTUP_SECONDS}.",
    )
    rdma: RDMA | None = Field(
        default=None,
        description="RDMA devices for engines that transfer KV, and the right to lock memory for them. Not for "
        "`pdx up`.",
    )
    pod_template: EnginePodTemplate | None = Field(
        default=None,
        description="Strategic merge patch of the pod templates of all roles. podTemplate of a role is applied after "
        "it. The name of vLLM's container is engine. Not for `pdx up`.",
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
        description="Devices that share each layer (--tensor-parallel-size). One of the two numbers of prefill and "
        "decode must divide the other.",
    )
    pipeline: Annotated[int, Field(strict=True, ge=1, le=16)] | None = Field(
        default=None,
        description="Stages of consecutive layers, each on its own tensor-parallel devices "
        "(--pipeline-parallel-size). With NIXL, only for prefill. Default: 1.",
    )
    data: Annotated[int, Field(strict=True, ge=1, le=16)] | None = Field(
        default=None,
        description="Data-parallel ranks of one engine, each with its own devices and KV (--data-parallel-size). "
        "Default: 1.",
    )
    expert: Flag | None = Field(
        default=None,
        description="True: the experts of a layer are distributed over the devices, and no expert's weights are "
        "split (--enable-expert-parallel). Default: false.",
    )


class ChunkedPrefill(Part):
    """How long prompts are divided into chunks, so that decoding continues between them."""

    enabled: Flag = Field(default=True, description="False: each prompt is prefilled in one step.")
    max_batched_tokens: Annotated[int, Field(strict=True, ge=1, le=16_777_216)] | None = Field(
        default=None,
        description="Maximum number of tokens in one step (--max-num-batched-tokens). A small value keeps "
        "inter-token latency even; a large one finishes prompts sooner. Default: vLLM's default for the device.",
    )


class Disruption(Part):
    """How many pods Kubernetes may evict, for example to empty a node."""

    max_unavailable: CountOrPercentage = Field(
        default=1, description="Maximum number of pods that may be missing: a number, or a percentage of the replicas."
    )


class Pool(Part):
    """The engines of one role, which are equal."""

    rules: ClassVar[tuple[Rule, ...]] = POOL_RULES

    replicas: Annotated[int, Field(strict=True, ge=0, le=1024)] | None = Field(
        default=None,
        description="Number of engines. Unset: PDX creates one engine and then never changes the number, even in "
        "rollouts. You, or an autoscaler, then scale the Deployment.",
    )
    resources: Resources = Field(default=Resources(), description="Compute resources of one engine.")
    parallelism: Parallelism = Field(default=Parallelism(), description="The devices of one engine.")
    chunked_prefill: ChunkedPrefill = Field(
        default=ChunkedPrefill(), description="How vLLM divides long prompts into chunks."
    )
    args: PoolArgs = Field(default=[], description="Further flags of `vllm serve` for this role, after engine.args.")
    env: PoolEnv = Field(default=[], description="Environment of this role; overrides engine.env.")
    pod_template: EnginePodTemplate | None = Field(
        default=None,
        description="Strategic merge patch of the pod template of this role: node selectors, tolerations, volumes, "
        "pull secrets. The name of vLLM's container is engine. Not for `pdx up`.",
    )
    disruption: Disruption = Field(
        default=Disruption(), description="How many engines Kubernetes may evict at the same time."
    )

    @property
    def initial_replicas(self) -> int:
        """Engines that PDX creates: `replicas`, or one if that is unset."""
        return 1 if self.replicas is None else self.replicas


class GatewayService(Part):
    """The gateway's Service."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="Type of the Service, as in Kubernetes."
    )
    annotations: Annotations = Field(default={}, description="Annotations of the Service, for load balancers.")


class Gateway(Part, gateway.Streams):
    """The gateway in front of the engines."""

    enabled: Flag = Field(
        default=True,
        json_schema_extra=without_default,
        description="False: PDX creates no gateway. Your own router then sends requests to the engines, and "
        "KVTransferVerified is Unknown. `pdx up` always runs a gateway. Default: true.",
    )
    replicas: Annotated[int, Field(strict=True, ge=0, le=64)] | None = Field(
        default=None,
        description="Number of gateway pods. They are independent of each other. Unset: PDX creates one pod and then "
        "never changes the number, so a HorizontalPodAutoscaler of the Deployment may own it. `pdx up` runs one.",
    )
    workers: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(
        default=1, description="Number of processes of one gateway. They share its port, and each uses one core."
    )
    image: Text | None = Field(default=None, description="Image of the gateway. Default: the chart's gateway.image.")
    resources: Resources = Field(default=Resources(), description="Compute resources of one gateway pod.")
    service: GatewayService = Field(default=GatewayService(), description="The gateway's Service.")
    limits: GatewayLimits = Field(default=GatewayLimits(), description="The limits for clients.")
    logs: GatewayLogs = Field(default=GatewayLogs(), description="The gateway's log.")
    cors: GatewayCORS = Field(
        default=GatewayCORS(),
        json_schema_extra=without_default,
        description="Requests of browsers from pages of other origins. Default: the gateway refuses them.",
    )
    auth: GatewayAuth | None = Field(default=None, description="The clients that may use the gateway. Default: all.")
    tls: GatewayTLS | None = Field(
        default=None,
        description="TLS on the serving port. Default: plain HTTP. The admin port is always plain. Not for `pdx up`.",
    )
    http_route: GatewayHTTPRoute | None = Field(
        default=None,
        description="An HTTPRoute of the Gateway API for the gateway's Service. It also sets status.url. Not for "
        "`pdx up`.",
    )
    pod_template: GatewayPodTemplate | None = Field(
        default=None,
        description="Strategic merge patch of the gateway's pod template. The name of the gateway's container is "
        "gateway.",
    )
    disruption: Disruption = Field(
        default=Disruption(), description="How many gateway pods Kubernetes may evict at the same time."
    )


class Rollout(Part):
    """How engines of an old revision are replaced. Percentages are of each role's replicas; maxSurge is rounded up,
    maxUnavailable down. If both result in 0, one engine may be missing."""

    max_surge: CountOrPercentage = Field(
        default="25%",
        description="Engines that a role may have in addition to its replicas during a rollout. 0: for clusters "
        "without spare devices.",
    )
    max_unavailable: CountOrPercentage = Field(
        default=0,
        description="Engines of a role that may be missing during a rollout. If maxSurge is also 0, the value is 1.",
    )


class Tracing(Part, gateway.Tracing):
    """Traces of requests, as OpenTelemetry's spans: the gateway's, and the engines' below them."""


class Observability(Part):
    """Access to metrics, and traces."""

    scrape_from: Annotated[list[ScrapeSource], Field(max_length=16)] = Field(
        default=[],
        description="Further pods that may reach the metrics ports of engines and gateway. An engine serves its "
        "metrics on the port of its inference API, so these pods can also send it requests.",
    )
    tracing: Tracing | None = Field(
        default=None,
        description="Traces of requests. A change of the endpoint restarts engines and gateway; a change of the "
        "ratio restarts only the gateway. Default: none.",
    )


class Spec(Part):
    """The desired state."""

    rules: ClassVar[tuple[Rule, ...]] = (*SPEC_RULES, *REQUEST_RULES)

    mode: Mode = Field(
        default=Mode.DISAGGREGATED,
        description="Disaggregated: prefill and decode run on different engines. Aggregated: one pool of engines "
        "does both, with chunked prefill; no KV moves.",
    )
    model: Model = Field(description="The model that is served.")
    paused: Flag = Field(
        default=False,
        json_schema_extra=without_default,
        description="True: the operator writes only the status, so you can change children by hand. Engines and "
        "gateways keep running. Default: false.",
    )
    labels: ChildLabels = Field(
        default={},
        json_schema_extra=without_default,
        description="Labels of all child objects, for policies and cost reports. Set labels of pods in podTemplate.",
    )
    annotations: ChildAnnotations = Field(
        default={},
        json_schema_extra=without_default,
        description="Annotations of all child objects. Set annotations of pods in podTemplate.",
    )
    engine: Engine = Field(default=Engine(), description="vLLM's settings for both roles.")
    kv_transfer: KVTransfer = Field(default=KVTransfer(), description="How KV moves from prefill to decode.")
    prefill: Pool | None = Field(default=None, description="The prefill engines; required in mode Disaggregated.")
    decode: Pool | None = Field(default=None, description="The decode engines; required in mode Disaggregated.")
    aggregated: Pool | None = Field(
        default=None,
        description="The engines of mode Aggregated. Default: the settings of decode, with as many replicas as "
        "prefill and decode together.",
    )
    routing: Routing = Field(
        default=Routing(),
        description="How the gateway selects engines, and what it does if one fails or all are busy.",
    )
    slo: SLO = Field(
        default=SLO(), description="The service level objectives of a request.", json_schema_extra=without_default
    )
    gateway: Gateway = Field(default=Gateway(), description="The gateway.")
    rollout: Rollout = Field(default=Rollout(), description="How a rollout replaces engines of an old revision.")
    observability: Observability = Field(default=Observability(), description="Access to metrics, and traces.")

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
        counts = [decode.replicas, *([self.prefill.replicas] if self.prefill else [])]
        replicas = None if None in counts else sum(count for count in counts if count is not None)
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
