"""Mooncake: peer to peer over Mooncake's transfer engine (TCP or RDMA). P writes into D's blocks, in every order.

Facts: vLLM 0.32 `vllm/distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_connector.py`, `mooncake_utils.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.connectors.base import KV_ROLES, Connector, EngineWiring, Site
from pdx_api.connectors.checks import Checks, choice, text
from pdx_api.connectors.families import AtBootstrap, Family, Identity, KVParams, Push, Settles
from pdx_api.names import Order, Role
from pdx_api.rule import Rule
from pdx_api.vllm.versions import minor

BOOTSTRAP: Final = "bootstrap"
BOOTSTRAP_PORT: Final = 8998
"""VLLM_MOONCAKE_BOOTSTRAP_PORT's default."""

PROTOCOL: Final = "mooncake_protocol"
PROTOCOLS: Final = ("tcp", "rdma")
"""Its values, PDX's default first; vLLM's default is rdma."""
DEVICE: Final = "device_name"

_KEPT_SECONDS: Final = 480.0
"""VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT's default: how long P pins blocks that no D reads. PDX does not lower it by a
`lease_config`, because it also limits D's wait for P, which may be long."""


def _prefill_params(transfer_id: str) -> KVParams:
    return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}


def _decode_params(transfer_id: str, prefill: Identity) -> KVParams:
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_bootstrap_addr": f"http://{prefill.host}:{prefill.port}",
        "remote_engine_id": prefill.engine_id,
        "transfer_id": transfer_id,
    }


def _identity(registered: Any, host: str, port: int, rank: int) -> Identity:
    """Read the answer of `/query`: rank -> engine id, and the addresses of its workers by TP and PP rank."""
    workers = registered[str(rank)]["worker_addr"]
    return Identity(
        engine_id=str(registered[str(rank)]["engine_id"]),
        host=f"[{host}]" if ":" in host else host,
        port=port,
        tensor_parallel=len(workers),
        pipeline_parallel=len(workers["0"]),
    )


_RDMA: Final = PROTOCOLS[1]
CHECKS: Final = Checks(
    settings=(
        choice(PROTOCOL, f"the transport of the transfer engine. Default: {PROTOCOLS[0]}.", PROTOCOLS),
        text(DEVICE, "the RDMA devices, for example mlx5_0,mlx5_1."),
    ),
    transfer=(
        Rule(
            f"!has(self.config.{PROTOCOL}) || self.config.{PROTOCOL} != '{_RDMA}'"
            f" || (has(self.config.{DEVICE}) && self.config.{DEVICE} != '')",
            f"{PROTOCOL} {_RDMA} needs devices; write config.{DEVICE}, for example mlx5_0, or {PROTOCOL}: "
            f"{PROTOCOLS[0]}",
            lambda kv: kv.config.get(PROTOCOL) != _RDMA or bool(kv.config.get(DEVICE)),
        ),
    ),
)
"""The checks of the transfer engine, for each of vLLM's classes that use it."""


@dataclass(frozen=True, slots=True)
class Mooncake(Connector):
    """`spec.kvTransfer.connector: Mooncake`."""

    name: str = "Mooncake"
    orders: tuple[Order, ...] = (Order.CONCURRENT, Order.PREFILL_FIRST, Order.DECODE_FIRST)
    port_names: Mapping[str, int] = field(default_factory=lambda: {BOOTSTRAP: BOOTSTRAP_PORT}, hash=False)
    checks: Checks = CHECKS

    def wire(self, version: str, *, any_patch: bool = False) -> str:
        """The minor version: the members of its messages change with it (mooncake_utils.py)."""
        return minor(version)

    def engine(self, role: Role, order: Order, site: Site, config: Mapping[str, Any]) -> EngineWiring:
        """Only P opens the bootstrap. Its workers choose free ports."""
        return EngineWiring(
            kv_transfer_config={
                "kv_connector": "MooncakeConnector",
                "kv_role": KV_ROLES[role],
                "kv_connector_extra_config": {PROTOCOL: PROTOCOLS[0], **config},
            },
            env={"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(site.ports[BOOTSTRAP])},
        )

    def family(self, order: Order) -> Family:
        """Push in every order."""
        return Push(
            prefill_params=_prefill_params,
            decode_params=_decode_params,
            identity=AtBootstrap(BOOTSTRAP, "/query", _identity),
            settles=Settles.BY_PREFILL_LEG,
            kept_seconds=_KEPT_SECONDS,
        )


CONNECTOR: Final = Mooncake()
