"""Custom: a user's connector. The user describes its vLLM class and its protocol.

The gateway does not read specs. It receives the protocol as a string: in an annotation of the engines' pods, or in a
flag.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from pdx_api.connectors.base import KV_ROLES, Connector, EngineWiring, Site
from pdx_api.connectors.checks import Checks
from pdx_api.connectors.families import Family, KVParams, Pool, Pull
from pdx_api.names import Order, Role
from pdx_api.rule import Rule

STORAGE_VARIABLE: Final = "PDX_KV_STORAGE"
"""Environment variable of an engine: the directory that all engines share, if there is one."""


class FamilyName(StrEnum):
    """The families that a user's connector may have."""

    PULL = "Pull"
    POOL = "Pool"


MAX_SAVED_AFTER_MILLISECONDS: Final = 60_000
DEFAULT_PREFILL_PARAMS: Final[KVParams] = {"do_remote_decode": True}
"""vLLM's own connectors then keep the prompt's KV for a D."""


_CHECKS: Final = Checks(
    transfer=(
        Rule(
            "has(self.custom)",
            "connector Custom needs a description; write custom: {className: ..., modulePath: ...}",
            lambda kv: kv.custom is not None,
        ),
    ),
    transfer_of_others=(
        Rule(
            "!has(self.custom)",
            "custom describes connector Custom; write connector: Custom, or leave out custom",
            lambda kv: kv.custom is None,
        ),
    ),
)


class ProtocolError(ValueError):
    """A text is not the protocol of a connector. The text is a sentence without its period."""


@dataclass(frozen=True, slots=True)
class Custom(Connector):
    """`spec.kvTransfer.connector: Custom`."""

    name: str = "Custom"
    orders: tuple[Order, ...] = (Order.PREFILL_FIRST,)
    checks: Checks = _CHECKS
    class_name: str = ""
    """vLLM's kv_connector; empty in the gateway, which needs only the protocol."""
    module_path: str | None = None
    """vLLM's kv_connector_module_path; None for a class of vLLM's own."""
    family_name: FamilyName = FamilyName.PULL
    prefill_params: KVParams = field(default_factory=lambda: DEFAULT_PREFILL_PARAMS, hash=False)
    saved_after: float = 0.0
    """Pool: seconds from P's answer until D can find the KV that P saves."""

    def engine(self, role: Role, order: Order, site: Site, config: Mapping[str, Any]) -> EngineWiring:
        """The user's class, with its code on PYTHONPATH and the shared directory in the environment."""
        transfer: dict[str, Any] = {"kv_connector": self.class_name, "kv_role": KV_ROLES[role]}
        if self.module_path is not None:
            transfer["kv_connector_module_path"] = self.module_path
        if config:
            transfer["kv_connector_extra_config"] = dict(config)
        env = {"PYTHONPATH": site.code, STORAGE_VARIABLE: site.storage}
        return EngineWiring(transfer, {name: value for name, value in env.items() if value})

    def family(self, order: Order) -> Family:
        """The family that the user sets."""
        if self.family_name is FamilyName.POOL:
            return Pool(saved_after=self.saved_after)
        return Pull(prefill_params=self.prefill_params)

    @property
    def protocol(self) -> str:
        """The protocol for a gateway, as JSON."""
        values = {"prefillParams": self.prefill_params, "savedAfterSeconds": self.saved_after}
        return json.dumps({"family": self.family_name, **values}, sort_keys=True)

    def with_protocol(self, protocol: str) -> "Custom":
        """This connector with a protocol. Raises ProtocolError if it is not a protocol."""
        try:
            values = json.loads(protocol)
            name = FamilyName(values["family"])
            params = dict(values.get("prefillParams", DEFAULT_PREFILL_PARAMS))
            saved_after = float(values.get("savedAfterSeconds", 0))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            example = '{"family": "Pull"}'
            raise ProtocolError(
                f"the protocol of connector {self.name} is {protocol!r:.200}; write JSON, for example {example}"
            ) from error
        return replace(self, family_name=name, prefill_params=params, saved_after=saved_after)


CONNECTOR: Final = Custom()
