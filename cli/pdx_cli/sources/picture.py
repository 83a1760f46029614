"""What `pdx doctor` has seen of one deployment, as frozen values: the findings are made of nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pdx_api.names import Mode, Role
from pdx_api.spec.types import PDDeployment
from pdx_operator.observed.workloads import ObservedGateway, ObservedPool, PodView

Body = Mapping[str, Any]
"""An object of the Kubernetes API, or an answer of a gateway, as plain mappings and lists."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway, asked on its admin port."""

    name: str
    state: Body | None
    """Its /pdx/state; None when it was not had."""
    trouble: str = ""
    """Then why."""
    canary: Body | None = None
    """Its /pdx/canary; None where it has none."""
    log: str = ""
    """The end of its log, where that was read."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A decode engine's own count of prompt tokens since its start."""

    prompt: float
    external: float
    """Those that came through the connector."""
    computed: float
    """Those that it has computed; the others were in its own prefix cache."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine that runs. What was not had is None or empty."""

    name: str
    role: Role
    revision: str = ""
    args: tuple[str, ...] = ()
    """vLLM's arguments, as its pod or its process has them."""
    rendered: tuple[str, ...] | None = None
    """The arguments that the operator wrote for it."""
    trouble: str = ""
    """Why its /health gave no 200; empty when it did, or was not asked."""
    version: str | None = None
    model: str | None = None
    """What it has loaded: `root` of its /v1/models."""
    tokens: Tokens | None = None
    log: str = ""
    """What it has logged of late."""


@dataclass(frozen=True, slots=True)
class Happening:
    """A warning among the Events."""

    kind: str
    name: str
    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class WantedSecret:
    """A Secret that the object names."""

    name: str
    key: str
    field: str
    """Where it is named."""
    exists: bool | None
    """None when that could not be seen."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What the gateway's account may do with pods."""

    missing: tuple[str, ...] = ()
    """Objects that should be there, as `RoleBinding qwen-gateway`."""
    lists: bool | None = None
    """Whether its Role, bound to it, lets it list and watch pods; None when that could not be seen."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator's Deployments, as far as they may be seen."""

    seen: bool = False
    """Whether one could look."""
    ready: int = 0
    wanted: int = 0
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """One deployment at one moment."""

    name: str
    now: datetime
    namespace: str | None = None
    """None for what runs on this machine."""
    mode: Mode | None = None
    body: Body = field(default_factory=dict)
    """The PDDeployment; empty outside a cluster."""
    deployment: PDDeployment | None = None
    """The same, read; None when its spec cannot be used."""
    operator: Operator = field(default_factory=Operator)
    pools: tuple[ObservedPool, ...] = ()
    stalled: tuple[str, ...] = ()
    """Deployments that made no progress within their deadline."""
    gateway: ObservedGateway | None = None
    pods: tuple[PodView, ...] = ()
    ended_logs: Mapping[str, str] = field(default_factory=dict)
    """The end of the log of a run that has failed, by pod."""
    secrets: tuple[WantedSecret, ...] = ()
    rights: Rights = field(default_factory=Rights)
    events: tuple[Happening, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    engines: tuple[Engine, ...] = ()
    dead: tuple[str, ...] = ()
    """Processes of a `pdx up` that have ended."""
    unseen: tuple[str, ...] = ()
    """What could not be looked at, each with why."""

    @property
    def status(self) -> Body:
        """The object's status."""
        return self.body.get("status") or {}

    def condition(self, kind: str) -> Body:
        """One condition of the status; empty when it is not there."""
        return next((c for c in self.status.get("conditions") or () if c.get("type") == kind), {})

    @property
    def endpoints(self) -> list[Body]:
        """The endpoints of all gateways that were asked."""
        return [e for g in self.gateways for e in (g.state or {}).get("endpoints") or ()]
