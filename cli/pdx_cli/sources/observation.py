"""The observation of one deployment at one moment, as frozen values. The checks of `pdx doctor` read nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pdx_api.names import Mode, Role
from pdx_api.vllm_metrics import PromptTokens
from pdx_cli.inputs.times import Objectives
from pdx_operator.observed.workloads import ObservedGateway, ObservedPool, PodView

if TYPE_CHECKING:
    from pdx_api.spec.types import PDDeployment

Body = Mapping[str, Any]
"""An object of the Kubernetes API, or a gateway's answer, as plain mappings and lists."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway, read through its admin port."""

    name: str
    state: Body | None
    """Its /pdx/state; None if it could not be read."""
    problem: str = ""
    """Why the state could not be read."""
    verification: Body | None = None
    """Its /pdx/verification; None if it has none."""
    log: str = ""
    """The end of its log; empty if it was not read."""
    log_source: str = ""
    """Where a person reads the whole log: a path, or a command. Empty if it is not known."""
    metrics: str = ""
    """Its /metrics; empty if they were not read."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One running engine. A value that could not be read is None or empty."""

    name: str
    role: Role
    revision: str = ""
    args: tuple[str, ...] = ()
    """vLLM's arguments, from its pod or its process."""
    rendered: tuple[str, ...] | None = None
    """The arguments that the operator wrote for it."""
    problem: str = ""
    """Why /health did not answer 200; empty if it did, or was not queried."""
    version: str | None = None
    model: str | None = None
    """The model that it has loaded: `root` of its /v1/models."""
    names: tuple[str, ...] = ()
    """What clients may send as `model`: the names in its /v1/models, adapters included."""
    tokens: PromptTokens | None = None
    """Its own count of prompt tokens since its start."""
    log: str = ""
    """The last minutes of its log."""
    log_source: str = ""
    """Where a person reads the whole log: a path, or a command. Empty if it is not known."""
    metrics: str = ""
    """Its /metrics; empty if they were not read."""


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """A process of a `pdx up` that has ended."""

    name: str
    log: str = ""
    log_source: str = ""


@dataclass(frozen=True, slots=True)
class Starting:
    """A `pdx up` that is not serving yet."""

    seconds: int
    """Since its start."""
    healthy: int
    """Engines whose /health answers."""
    engines: int


@dataclass(frozen=True, slots=True)
class WarningEvent:
    """A Kubernetes Event of type Warning."""

    kind: str
    name: str
    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class SecretReference:
    """A Secret that the object names."""

    name: str
    key: str
    field: str
    """The field that names it."""
    exists: bool | None
    """None if this could not be read."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What the gateway's ServiceAccount may do with pods."""

    missing: tuple[str, ...] = ()
    """Objects that must exist and do not, for example `RoleBinding qwen-gateway`."""
    lists: bool | None = None
    """Whether its Role lets it list and watch pods; None if the Role could not be read."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator's Deployments."""

    seen: bool = False
    """Whether they could be read."""
    ready: int = 0
    replicas: int = 0
    """How many pods the Deployments request."""
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """One deployment at one moment."""

    name: str
    now: datetime
    namespace: str | None = None
    """None for a deployment on this machine."""
    mode: Mode | None = None
    body: Body = field(default_factory=dict)
    """The PDDeployment; empty outside a cluster."""
    deployment: "PDDeployment | None" = None
    """The parsed body; None if its spec is invalid."""
    operator: Operator = field(default_factory=Operator)
    pools: tuple[ObservedPool, ...] = ()
    stalled: tuple[str, ...] = ()
    """Deployments that exceeded their progress deadline."""
    gateway: ObservedGateway | None = None
    pods: tuple[PodView, ...] = ()
    ended_logs: Mapping[str, str] = field(default_factory=dict)
    """Pod -> end of the log of a container that failed."""
    secrets: tuple[SecretReference, ...] = ()
    rights: Rights = field(default_factory=Rights)
    events: tuple[WarningEvent, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    engines: tuple[Engine, ...] = ()
    dead: tuple[EndedProcess, ...] = ()
    objectives: Objectives = field(default_factory=Objectives)
    """What the user states on the command line."""
    starting: Starting | None = None
    """None: nothing starts on this machine."""
    unseen: tuple[str, ...] = ()
    """What could not be read, each with the reason."""

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine, without pods."""
        return self.namespace is None

    @property
    def down(self) -> frozenset[str]:
        """Engines that do not answer, or whose process has ended: what other checks see of them is a consequence."""
        return frozenset(e.name for e in self.engines if e.problem) | frozenset(p.name for p in self.dead)

    @property
    def status(self) -> Body:
        """The object's status."""
        return self.body.get("status") or {}

    def condition(self, kind: str) -> Body:
        """Return one condition of the status; empty if it is missing."""
        return next((c for c in self.status.get("conditions") or () if c.get("type") == kind), {})

    @property
    def endpoints(self) -> list[Body]:
        """The endpoints of all gateways that answered."""
        return [e for g in self.gateways for e in (g.state or {}).get("endpoints") or ()]
