"""Custom: a connector that PDX does not know. The user says its vLLM class and how it is spoken to.

The gateway knows no spec, so what it must know of the connector, the protocol, travels as a text: in an annotation of
the engines' pods, or in a flag.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from pdx_api.connectors.base import KV_ROLES, EngineWiring, SideService, Site
from pdx_api.connectors.checks import Checks
from pdx_api.connectors.families import Family, KVParams, Pool, Pull
from pdx_api.names import Order, Role
from pdx_api.rule import Rule

STORAGE_VARIABLE: Final = "PDX_KV_STORAGE"
"""Environment variable of an engine: the directory that all engines share, where there is one."""


class FamilyName(StrEnum):
    """The families that a connector of the user's own may speak."""

    SERIAL = "Serial"
    POOL = "Pool"


DEFAULT_PREFILL_PARAMS: Final[KVParams] = {"do_remote_decode": True}
"""What vLLM's own connectors take as: somebody will fetch the KV of this prompt."""


_CHECKS: Final = Checks(
    transfer=(
        Rule(
            "has(self.custom)",
            "connector Custom is one that PDX does not know; write custom: {className: ..., modulePath: ...}",
            lambda kv: kv.custom is not None,
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Custom:
    """`spec.kvTransfer.connector: Custom`."""

    name: str = "Custom"
    orders: tuple[Order, ...] = (Order.PREFILL_FIRST,)
    port_names: Mapping[str, int] = field(default_factory=dict, hash=False)
    services: tuple[SideService, ...] = ()
    checks: Checks = _CHECKS
    class_name: str = ""
    """vLLM's kv_connector; empty where only the protocol is known."""
    module_path: str | None = None
    """vLLM's kv_connector_module_path; None for a class that vLLM knows."""
    speaks: FamilyName = FamilyName.SERIAL
    prefill_params: KVParams = field(default_factory=lambda: DEFAULT_PREFILL_PARAMS, hash=False)
    saved_after: float = 0.0
    """Pool: seconds from P's answer until what it saves can be found."""

    def engine(self, role: Role, order: Order, site: Site, config: Mapping[str, Any]) -> EngineWiring:
        """The user's class, found where its code is, and told the directory that all engines share."""
        transfer: dict[str, Any] = {"kv_connector": self.class_name, "kv_role": KV_ROLES[role]}
        if self.module_path is not None:
            transfer["kv_connector_module_path"] = self.module_path
        if config:
            transfer["kv_connector_extra_config"] = dict(config)
        env = {"PYTHONPATH": site.code, STORAGE_VARIABLE: site.storage}
        return EngineWiring(transfer, {name: value for name, value in env.items() if value})

    def keeping(self, seconds: int) -> Mapping[str, Any]:
        """Nothing: how long P keeps blocks is a setting of the connector's own."""
        return {}

    def family(self, order: Order) -> Family:
        """What the user says."""
        if self.speaks is FamilyName.POOL:
            return Pool(saved_after=self.saved_after)
        return Pull(prefill_params=self.prefill_params)

    @property
    def protocol(self) -> str:
        """What a gateway must know of it, as a text."""
        said = {"prefillParams": self.prefill_params, "savedAfterSeconds": self.saved_after}
        return json.dumps({"family": self.speaks, **said}, sort_keys=True)

    def told(self, protocol: str) -> "Custom":
        """This connector with a protocol; raises ValueError with a sentence for what is none."""
        try:
            said = json.loads(protocol)
            speaks, params = FamilyName(said["family"]), dict(said.get("prefillParams", DEFAULT_PREFILL_PARAMS))
            saved_after = float(said.get("savedAfterSeconds", 0))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{protocol!r:.200} is no protocol of connector {self.name}") from error
        return replace(self, speaks=speaks, prefill_params=params, saved_after=saved_after)


CONNECTOR: Final = Custom()
