"""The interface of a connector: the wiring of its engines, and its family, which the gateway uses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.connectors.checks import Checks
from pdx_api.connectors.families import Family
from pdx_api.names import Order, Role

KV_ROLES: Final = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
"""vLLM's `kv_role` of each role, for connectors in which KV moves from P to D only."""


@dataclass(frozen=True, slots=True)
class Site:
    """The addresses, ports and directories of one engine that its connector needs."""

    host: str
    """The engine's address for other engines."""
    ports: Mapping[str, int]
    """A port for each name in the connector's `port_names`."""
    storage: str = ""
    """Directory that all engines share; empty: none."""
    code: str | None = None
    """Directory with the code of a user's connector, if PDX mounts it."""
    services: Mapping[str, "Site"] = field(default_factory=dict)
    """The connector's side services by name."""
    files: str = ""
    """Directory that contains the engine's `EngineWiring.files`. No other engine of the machine uses it."""
    pool_bytes: int = 0
    """Size of the pool, or of each engine's part of it."""
    revision: str = ""
    """The pairing revision: engines use each other's KV only within one revision."""


@dataclass(frozen=True, slots=True)
class EngineWiring:
    """The configuration that a connector adds to one engine."""

    kv_transfer_config: Mapping[str, Any]
    """vLLM's --kv-transfer-config."""
    env: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    """Flags of `vllm serve` that the connector requires."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the engine reads in `Site.files`: name -> content."""


@dataclass(frozen=True, slots=True)
class SideService:
    """A program that a connector needs beside the engines: one for each revision, or one for each engine."""

    name: str
    """At most ten characters, because names of Kubernetes objects contain it."""
    ports: Mapping[str, int] = field(hash=False)
    """The ports that it opens: name -> number in a pod. On `names.PORT_METRICS` it answers Prometheus."""
    command: Callable[[Site, float, int | None], tuple[str, ...]]
    """(its site, size of its pool in GiB, tokens in a KV block if the user sets it) -> its command line.

    `Site.services` contains the services before it in the connector's list.
    """
    program: str
    """The executable that must be installed."""
    probe_port: str
    """Name of the port of its health check."""
    probe_path: str
    """Path of its health check, which answers 200 while it serves."""
    is_sidecar: bool = False
    """True: a sidecar, one in each engine's pod and at its address. False: one for each revision."""
    holds_pool: bool = True
    """Whether it uses `spec.kvTransfer.poolSize` of memory. If no service does, each prefill engine does."""
    title: str = ""
    """Its name in messages; empty: NAME server."""
    replaced_by: str = ""
    """The setting of `spec.kvTransfer.config` that names the user's own service. If it is set, PDX starts none."""


@dataclass(frozen=True, slots=True)
class Connector:
    """One KV connector. Instances are frozen, and all methods are pure."""

    name: str
    """The value of `spec.kvTransfer.connector`."""
    orders: tuple[Order, ...]
    """The orders that it allows, its default first."""
    port_names: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The ports that an engine opens for it, besides HTTP: name -> number in a pod."""
    services: tuple[SideService, ...] = ()
    """The programs that must run beside its engines."""
    checks: Checks = field(default_factory=Checks)
    """Its settings, and the rules that an object with this connector must fulfil."""
    recomputes: bool = False
    """Whether D computes KV that does not arrive, whatever `spec.kvTransfer.onLoadFailure` is."""
    wiring: int = 1
    """The number of its wiring: one more with each change after which P and D, or an engine and its side services,
    of the two versions do not work together. Engines with different numbers never pair."""

    def any_patch(self, config: Mapping[str, Any]) -> bool:
        """Whether `spec.kvTransfer.config` lets P and D run different patch releases that would else not pair."""
        return False

    def wire(self, version: str, *, any_patch: bool = False) -> str:
        """What P and D must have in common of the version of vLLM that they report; empty: unknown, or nothing."""
        return ""

    def engine(self, role: Role, order: Order, site: Site, config: Mapping[str, Any]) -> EngineWiring:
        """Wiring of one engine. `config` is `lease_config`, overridden by the user's `spec.kvTransfer.config`."""
        raise NotImplementedError

    def lease_config(self, seconds: int) -> Mapping[str, Any]:
        """The setting that makes P pin the blocks of a finished prefill for `seconds`; empty if there is none."""
        return {}

    def family(self, order: Order) -> Family:
        """The protocol of a pair in this order."""
        raise NotImplementedError
