"""The PDDeployment: every field with its default, unit and consequence. The source of truth for CRD, CLI and docs."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from pdx_api.connectors import CONNECTORS, choose
from pdx_api.connectors.base import Connector, SideService
from pdx_api.defaults import POOL_GIB
from pdx_api.names import STORAGE_MOUNT, Mode, Order, Role
from pdx_api.rule import Rule
from pdx_api.rules.connector_rules import CONNECTOR_EXISTS
from pdx_api.rules.routing_rules import REQUEST_RULES
from pdx_api.rules.spec_rules import (
    FLAG_IS_FREE,
    FLAG_IS_NOT_SHARED,
    FLAG_IS_POSSIBLE,
    KV_TRANSFER_RULES,
    POOL_RULES,
    RESOURCES_RULES,
    SPEC_RULES,
    VARIABLE_IS_NOT_SHARED,
)
from pdx_api.spec.connector_config import ConnectorConfig
from pdx_api.spec.custom import CustomConnector
from pdx_api.spec.fields import (
    Annotations,
    Argument,
    CountOrPercentage,
    Flag,
    Labels,
    ListMap,
    Part,
    Quantities,
    Size,
    Text,
    matching,
)
from pdx_api.spec.model import Model, Volume
from pdx_api.spec.overlay import EnginePodTemplate, GatewayPodTemplate, ServicePodTemplate
from pdx_api.spec.routing import EngineKey, GatewayAuth, GatewayLimits, GatewayLogs, Routing

NAME_RULE: Final = matching(
    r"^[a-z]([-a-z0-9]{0,39}[a-z0-9])?$",
    "write at most 41 lower-case letters, digits and -, a letter first and no - at the end: names of children carry it",
)
Name = Annotated[str, StringConstraints(max_length=253), NAME_RULE]
"""A DNS label short enough that the names of children, which carry it, stay labels too."""
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
    value: Annotated[str, StringConstraints(max_length=8192)] = Field(description="Its value, taken literally.")


Env = Annotated[list[EnvVar], Field(max_length=64), ListMap("name")]
PoolEnv = Annotated[list[Annotated[EnvVar, VARIABLE_IS_NOT_SHARED]], Field(max_length=64), ListMap("name")]


class Engine(Part):
    """vLLM's settings that both roles share: what differs between P and D cannot pair."""

    image: Text = Field(
        default="vllm/vllm-openai:v0.32.0",
        description="Container image of the engines. P and D need one vLLM version: its KV handshake compares it. "
        "`pdx up` uses the installed vLLM instead.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="When the image is pulled. Default: Kubernetes' own, by the image's tag."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto", description="Type of weights and activations (--dtype)."
    )
    max_model_len: Annotated[int, Field(strict=True, ge=1, le=16_777_216)] | None = Field(
        default=None, description="Longest prompt plus answer, in tokens (--max-model-len). Default: the model's own."
    )
    kv_cache_dtype: Text | None = Field(
        default=None, description="Type of the KV cache (--kv-cache-dtype). Default: that of the model."
    )
    block_size: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = Field(
        default=None, description="Tokens in one KV block (--block-size). Default: vLLM's for the device (CPU 128)."
    )
    args: Args = Field(default=[], description="Further flags of `vllm serve` for both roles, one list entry each.")
    env: Env = Field(default=[], description="Environment of both roles.")
    shutdown_seconds: Annotated[int, Field(strict=True, ge=0, le=3600)] = Field(
        default=60, description="How long an engine that is stopped may take to finish its requests, in seconds."
    )
    api_key_secret_ref: EngineKey | None = Field(
        default=None,
        description="The API key that engines ask for (VLLM_API_KEY) and the gateway sends them. Engines read it at "
        "their start. Default: none, and the gateway sends on the client's Authorization. Not for `pdx up`.",
    )


class KVStorage(Part):
    """A volume for KV."""

    persistent_volume_claim: Volume = Field(
        description=f"A volume that engines of both roles may write to (ReadWriteMany), mounted at {STORAGE_MOUNT}."
    )


def _only(has: Callable[[SideService], bool]) -> str:
    names = [name for name, connector in CONNECTORS.items() if any(has(service) for service in connector.services)]
    return f"Only {' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))} read it."


class KVTransfer(Part):
    """How KV travels from prefill to decode. Connector and order belong together."""

    rules: ClassVar[tuple[Rule, ...]] = KV_TRANSFER_RULES

    connector: Annotated[Text, CONNECTOR_EXISTS] = Field(
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
        "counts it. Recompute: D prefills by itself, and only latency shows it; LMCache, LMCacheP2P and "
        "MooncakeStore always do.",
    )
    storage: KVStorage | None = Field(
        default=None,
        description="Where a connector keeps KV that engines share by files. `pdx up` uses a directory of the run.",
    )
    pool_size: Size | None = Field(
        default=None,
        description="Memory of the pool that a connector's server keeps, as a quantity; with LMCacheP2P each engine "
        "has one, with MooncakeStore each prefill engine gives as much of its own. A change of it starts the server "
        f"anew, empty, and the engines that it is beside or that hold it. {_only(lambda service: True)} "
        f"Default: {POOL_GIB}Gi.",
    )
    config: ConnectorConfig = Field(
        default={}, description="Connector settings for vLLM's kv_connector_extra_config; they win over PDX's own."
    )
    custom: CustomConnector | None = Field(
        default=None, description="What connector Custom is: a class of your own, or one that PDX does not know."
    )
    pod_template: ServicePodTemplate | None = Field(
        default=None,
        description="Merged onto the pod templates of the connector's side services as `kubectl patch` merges "
        "(strategically). Their container is called service. What runs beside each engine is an init container of its "
        "pod: initContainers in podTemplate of prefill and decode, for LMCacheP2P named lmcache. A change starts them "
        f"anew, empty. {_only(lambda service: not service.beside_engine)} Not for `pdx up`.",
    )


class Resources(Part):
    """Compute resources of one pod, in Kubernetes' terms. `pdx up` does not limit processes."""

    rules: ClassVar[tuple[Rule, ...]] = RESOURCES_RULES

    requests: Quantities = Field(default={}, description="What the scheduler sets aside.")
    limits: Quantities = Field(default={}, description="The most it may use, for example nvidia.com/gpu: 1.")


class Parallelism(Part):
    """How one engine spreads over devices of one node."""

    tensor: Annotated[int, Field(strict=True, ge=1, le=16)] = Field(
        default=1,
        description="Devices that share each layer (--tensor-parallel-size). Of prefill's and decode's numbers one "
        "divides the other.",
    )
    nodes: Annotated[
        int,
        Field(strict=True, ge=1, le=64),
        Rule(
            "self == 1",
            "an engine of several nodes is not in this version; write nodes: 1",
            lambda nodes: nodes == 1,
        ),
    ] = Field(default=1, description="Nodes that one engine spreads over. This version knows 1 only.")


class ChunkedPrefill(Part):
    """How long prompts are cut, so that decoding goes on between the pieces."""

    enabled: Flag = Field(default=True, description="False prefills every prompt in one step.")
    max_batched_tokens: Annotated[int, Field(strict=True, ge=1, le=16_777_216)] | None = Field(
        default=None,
        description="Chunk size: most tokens in one step (--max-num-batched-tokens). Small keeps the time between "
        "tokens even, large finishes prompts sooner. Default: vLLM's for the device.",
    )


class Disruption(Part):
    """How many pods Kubernetes may take away by itself, for example to empty a node."""

    max_unavailable: CountOrPercentage = Field(
        default=1, description="Most pods of the pool that may be missing: a number, or a percentage of its replicas."
    )


class Pool(Part):
    """A set of equal engines."""

    rules: ClassVar[tuple[Rule, ...]] = POOL_RULES

    replicas: Annotated[int, Field(strict=True, ge=0, le=1024)] = Field(default=1, description="Number of engines.")
    resources: Resources = Field(default=Resources(), description="Compute resources of one engine.")
    parallelism: Parallelism = Field(default=Parallelism(), description="How one engine spreads over devices.")
    chunked_prefill: ChunkedPrefill = Field(default=ChunkedPrefill(), description="How long prompts are cut.")
    args: PoolArgs = Field(default=[], description="Further flags of `vllm serve` for this role, after engine.args.")
    env: PoolEnv = Field(default=[], description="Environment of this role; wins over engine.env.")
    pod_template: EnginePodTemplate | None = Field(
        default=None,
        description="Merged onto the pod template of this role as `kubectl patch` merges (strategically): node "
        "selectors, tolerations, volumes, pull secrets. vLLM's container is called engine. Not for `pdx up`.",
    )
    disruption: Disruption = Field(default=Disruption(), description="How many engines may be missing at a time.")


class GatewayService(Part):
    """The Service in front of the gateway."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="From where it can be reached, in Kubernetes' terms."
    )
    annotations: Annotations = Field(default={}, description="Annotations of the Service, for load balancers.")


class Gateway(Part):
    """The gateway in front of the engines."""

    replicas: Annotated[int, Field(strict=True, ge=0, le=64)] = Field(
        default=1, description="Number of gateway pods; they need nothing from each other. `pdx up` runs one."
    )
    autoscaled: Flag = Field(
        default=False,
        description="True leaves the number of replicas to a HorizontalPodAutoscaler of the gateway's Deployment.",
    )
    workers: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(
        default=1, description="Processes of one gateway that share its port, one core each."
    )
    image: Text | None = Field(default=None, description="Image of the gateway. Default: that of the operator.")
    resources: Resources = Field(default=Resources(), description="Compute resources of one gateway pod.")
    service: GatewayService = Field(default=GatewayService(), description="The Service in front of the gateway.")
    limits: GatewayLimits = Field(default=GatewayLimits(), description="What the gateway takes from clients.")
    logs: GatewayLogs = Field(default=GatewayLogs(), description="What the gateway writes to its log.")
    auth: GatewayAuth | None = Field(default=None, description="Who may use the gateway. Default: everybody.")
    pod_template: GatewayPodTemplate | None = Field(
        default=None,
        description="Merged onto the gateway's pod template as `kubectl patch` merges (strategically). The gateway's "
        "container is called gateway.",
    )
    disruption: Disruption = Field(default=Disruption(), description="How many gateway pods may be missing at a time.")


class Rollout(Part):
    """How engines are replaced when a change touches what P and D must agree on. Percentages are of each role's
    replicas; surge is rounded up, unavailable down; where both come out as 0, one engine may be missing."""

    max_surge: CountOrPercentage = Field(
        default="25%",
        description="Engines of a role beyond its replicas while a rollout goes on. 0: there are no spare devices.",
    )
    max_unavailable: CountOrPercentage = Field(
        default=0, description="Engines of a role that may be missing while a rollout goes on."
    )


class ScrapeSource(Part):
    """Pods that may read metrics. What is left out matches everything; at least one label is needed."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(has(self.namespaceLabels) && self.namespaceLabels.size() > 0)"
            " || (has(self.podLabels) && self.podLabels.size() > 0)",
            "an entry without labels would let everybody in; write podLabels or namespaceLabels",
            lambda source: bool(source.namespace_labels or source.pod_labels),
        ),
    )

    namespace_labels: Labels = Field(
        default={},
        description="Labels of their namespace, for example kubernetes.io/metadata.name: monitoring. "
        "Default: the namespace of the object.",
    )
    pod_labels: Labels = Field(default={}, description="Labels of the pods. Default: all pods of the namespaces.")


class Observability(Part):
    """Who may look."""

    scrape_from: Annotated[list[ScrapeSource], Field(max_length=16)] = Field(
        default=[],
        description="Who, beside gateway and engines, may reach the engines' port for metrics, and the gateway's.",
    )


class Spec(Part):
    """What the user wants."""

    rules: ClassVar[tuple[Rule, ...]] = (*SPEC_RULES, *REQUEST_RULES)

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
    routing: Routing = Field(
        default=Routing(),
        description="How the gateway chooses engines, and what it does when one fails or all are busy.",
    )
    gateway: Gateway = Field(default=Gateway(), description="The gateway in front of the engines.")
    rollout: Rollout = Field(
        default=Rollout(), description="How engines are replaced when a change touches what P and D must agree on."
    )
    observability: Observability = Field(default=Observability(), description="Who may look.")

    @property
    def connector(self) -> Connector:
        """The connector in force."""
        custom = self.kv_transfer.custom
        return choose(self.kv_transfer.connector, self.kv_transfer.order)[0] if custom is None else custom.connector

    @property
    def protocol(self) -> str:
        """What the gateway must know of a connector of the user's own, as a text; empty for every other."""
        return self.kv_transfer.custom.connector.protocol if self.kv_transfer.custom is not None else ""

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
