"""NIXL: peer to peer over UCX. Pull (`NixlConnector`, P first) and push (`NixlPushConnector`, D first or both at once).

Facts: vLLM 0.32 `vllm/distributed/kv_transfer/kv_connector/v1/nixl/{base,pull,push}_scheduler.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.connectors.base import KV_ROLES, EngineWiring, SideService, Site
from pdx_api.connectors.checks import DECODE, DECODE_CONTEXT, PIPELINE, PREFILL_CONTEXT, Checks, number, without_flag
from pdx_api.connectors.families import Family, Identity, InPrefillAnswer, KVParams, Pull, Push, Settles
from pdx_api.defaults import LEASE_MARGIN_SECONDS
from pdx_api.names import Order, Role
from pdx_api.rule import Rule

SIDE_CHANNEL: Final = "side-channel"
SIDE_CHANNEL_PORT: Final = 5600
"""VLLM_NIXL_SIDE_CHANNEL_PORT's default."""

LEASE: Final = "kv_lease_duration"
"""Setting for how long P keeps the blocks of a finished prefill, in seconds; vLLM's default is 30."""


_PREFILL_PARAMS: Final[KVParams] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def _decode_params(meeting: str, prefill: Identity) -> KVParams:
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": prefill.engine_id,
        "remote_host": prefill.host,
        "remote_port": prefill.port,
        "tp_size": prefill.tensor_parallel,
        "pp_size": prefill.pipeline_parallel,
        "remote_request_id": meeting,
    }


def _identity(answer: KVParams) -> Identity:
    return Identity(
        engine_id=str(answer["remote_engine_id"]),
        host=str(answer["remote_host"]),
        port=int(answer["remote_port"]),
        tensor_parallel=int(answer.get("tp_size") or 1),
        pipeline_parallel=int(answer.get("pp_size") or 1),
    )


def _lease_covers_handoff(spec: Any) -> bool:
    lease = spec.kv_transfer.config.get(LEASE)
    return bool(lease is None or lease > spec.routing.deadlines.handoff_seconds)


_CHECKS: Final = Checks(
    settings=(
        number(
            LEASE,
            "how long P keeps finished blocks for D, in seconds. Default: routing.deadlines.handoffSeconds and "
            f"{LEASE_MARGIN_SECONDS:g} s more.",
            least=1,
            most=86_400,
            unit="seconds",
        ),
    ),
    spec=(
        Rule(
            f"!has(self.kvTransfer.config.{LEASE})"
            f" || self.kvTransfer.config.{LEASE} > self.routing.deadlines.handoffSeconds",
            f"P would give up blocks that D may still fetch; write kvTransfer.config.{LEASE} above "
            "routing.deadlines.handoffSeconds, or leave it out",
            _lease_covers_handoff,
        ),
        # vLLM 0.32 nixl/base_worker.py and nixl/connector.py raise for the first two; push has no code for the third.
        without_flag(PIPELINE, "D has one pipeline stage with NIXL", DECODE),
        without_flag(PREFILL_CONTEXT, "D has no prefill context parallelism with NIXL", DECODE),
        without_flag(
            DECODE_CONTEXT,
            "NIXL pushes without decode context parallelism",
            orders=(Order.DECODE_FIRST, Order.CONCURRENT),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Nixl:
    """`spec.kvTransfer.connector: NIXL`."""

    name: str = "NIXL"
    orders: tuple[Order, ...] = (Order.PREFILL_FIRST, Order.DECODE_FIRST, Order.CONCURRENT)
    port_names: Mapping[str, int] = field(default_factory=lambda: {SIDE_CHANNEL: SIDE_CHANNEL_PORT}, hash=False)
    services: tuple[SideService, ...] = ()
    checks: Checks = _CHECKS

    def engine(self, role: Role, order: Order, site: Site, config: Mapping[str, Any]) -> EngineWiring:
        """The side channel binds and advertises one address, so it is the pod's own and never a wildcard."""
        transfer: dict[str, Any] = {
            "kv_connector": "NixlConnector" if order is Order.PREFILL_FIRST else "NixlPushConnector",
            "kv_role": KV_ROLES[role],
        }
        if config:
            transfer["kv_connector_extra_config"] = dict(config)
        return EngineWiring(
            kv_transfer_config=transfer,
            env={
                "VLLM_NIXL_SIDE_CHANNEL_HOST": site.host,
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(site.ports[SIDE_CHANNEL]),
            },
        )

    def keeping(self, seconds: int) -> Mapping[str, Any]:
        """P's lease; a D that waits for its KV renews it by heartbeats, but not while both legs run at once."""
        return {LEASE: seconds}

    def family(self, order: Order) -> Family:
        """Pull is serial; push meets under the request id, whichever leg goes first."""
        if order is Order.PREFILL_FIRST:
            return Pull(prefill_params=_PREFILL_PARAMS)
        return Push(
            prefill_params=lambda _meeting: _PREFILL_PARAMS,
            decode_params=_decode_params,
            identity=InPrefillAnswer(_identity),
            settles=Settles.BY_DECODE_LEG,
        )


CONNECTOR: Final = Nixl()
