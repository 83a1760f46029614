"""`spec.kvTransfer`: the connector, the order, and what they need."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from pdx_api.connectors import CONNECTORS, DEFAULT
from pdx_api.connectors.base import Connector, SideService
from pdx_api.defaults import POOL_GIB
from pdx_api.names import STORAGE_MOUNT, Order
from pdx_api.rule import Rule
from pdx_api.rules.connector_rules import CONNECTOR_EXISTS
from pdx_api.rules.spec_rules import KV_TRANSFER_RULES
from pdx_api.settings import gateway
from pdx_api.settings.kinds import Bytes
from pdx_api.spec.connector_config import ConnectorConfig
from pdx_api.spec.custom import CustomConnector
from pdx_api.spec.fields import Part, Text, without_default
from pdx_api.spec.model import Volume
from pdx_api.spec.overlay import ServicePodTemplate


class KVStorage(Part):
    """A volume for KV."""

    persistent_volume_claim: Volume = Field(
        description=f"A volume that engines of both roles can write to (ReadWriteMany), mounted at {STORAGE_MOUNT}."
    )


class Verification(Part, gateway.Verification):
    """The transfer probes, which show whether KV moves (condition KVTransferVerified)."""


def _names(matches: Callable[[Connector], bool]) -> str:
    names = [name for name, connector in CONNECTORS.items() if matches(connector)]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _only(matches: Callable[[SideService], bool]) -> str:
    return f"Only for {_names(lambda connector: any(map(matches, connector.services)))}."


def _has_pool_in_engines(connector: Connector) -> bool:
    return bool(connector.services) and not any(service.holds_pool for service in connector.services)


_SIDECARS: Final = [(name, each.name) for name, c in CONNECTORS.items() for each in c.services if each.is_sidecar]
_WITH_SIDECARS: Final = " and ".join(name for name, _ in _SIDECARS)


class KVTransfer(Part):
    """How KV moves from prefill to decode. Each connector allows certain orders."""

    rules: ClassVar[tuple[Rule, ...]] = KV_TRANSFER_RULES

    connector: Annotated[Text, CONNECTOR_EXISTS] = Field(
        default=DEFAULT,
        description="The KV connector. PDX derives vLLM's connector class, its configuration, environment and ports.",
    )
    order: Order | None = Field(
        default=None,
        description="The engine that gets its request first. PrefillFirst: the prefill engine finishes, then the "
        "decode engine pulls the KV (with NIXL). DecodeFirst and Concurrent: the prefill engine pushes it into blocks "
        "that the decode engine has allocated. Default: the connector's first order.",
    )
    on_load_failure: Literal["Fail", "Recompute"] = Field(
        default="Fail",
        description="What the decode engine does if KV does not arrive. Fail: it answers with an error, which the "
        "gateway counts and retries. Recompute: it prefills the prompt itself; only latency shows this. "
        f"{_names(lambda connector: connector.recomputes)} always recompute.",
    )
    verification: Verification = Field(
        default=Verification(),
        description="The transfer probes, which test whether KV moves. A change replaces no engine.",
        json_schema_extra=without_default,
    )
    storage: KVStorage | None = Field(
        default=None,
        description="Volume for a connector that shares KV through files. `pdx up` uses a directory of the run.",
    )
    pool_size: Bytes | None = Field(
        default=None,
        description="Size of the pool in the memory of a connector's server, as a quantity. "
        f"{_WITH_SIDECARS}: each engine has its own server with this size. {_names(_has_pool_in_engines)}: each "
        "prefill engine adds this much of its own memory instead. A change restarts the server, with an empty pool, "
        f"and the engines of {_WITH_SIDECARS} and {_names(_has_pool_in_engines)}. {_only(lambda service: True)} "
        f"Default: {POOL_GIB}Gi.",
    )
    config: ConnectorConfig = Field(
        default={}, description="Settings for vLLM's kv_connector_extra_config; they override PDX's."
    )
    custom: CustomConnector | None = Field(
        default=None,
        description="Description of connector Custom: your own class, or one of vLLM's that PDX does not support.",
    )
    pod_template: ServicePodTemplate | None = Field(
        default=None,
        description="Strategic merge patch of the pod templates of the connector's side services. The name of their "
        "container is service. A change restarts them, with an empty pool. A sidecar is an init container of the "
        "engine's pod: change it in podTemplate of prefill and decode, under initContainers "
        f"({', '.join(f'{connector}: {service}' for connector, service in _SIDECARS)}). "
        f"{_only(lambda service: not service.is_sidecar)} Not for `pdx up`.",
    )
