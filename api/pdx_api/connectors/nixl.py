"""NIXL: peer to peer over UCX. Pull (`NixlConnector`, P first) and push (`NixlPushConnector`, D first or both at once).

Facts: vLLM 0.32 `vllm/distributed/kv_transfer/kv_connector/v1/nixl/{base,pull,push}_scheduler.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.connectors.base import KV_ROLES, Connector, EngineWiring, Site
from pdx_api.connectors.checks import (
    DECODE,
    DECODE_CONTEXT,
    PIPELINE,
    PREFILL_CONTEXT,
    Checks,
    boolean,
    number,
    of_versions,
    without_flag,
)
from pdx_api.connectors.families import (
    Family,
    Identity,
    InPrefillAnswer,
    Kind,
    KVParams,
    Member,
    Pull,
    Push,
    Settles,
)
from pdx_api.defaults import LEASE_MARGIN_SECONDS
from pdx_api.names import Order, Role
from pdx_api.rule import Rule
from pdx_api.vllm.versions import VERSIONS, minor

SIDE_CHANNEL: Final = "side-channel"
SIDE_CHANNEL_PORT: Final = 5600
"""VLLM_NIXL_SIDE_CHANNEL_PORT's default."""

LEASE: Final = "kv_lease_duration"
"""Setting: seconds that P pins the blocks of a finished prefill; vLLM's default is 30."""

BIDIRECTIONAL: Final = "bidirectional_kv_xfer"
"""Setting: D keeps the KV of each answer for a P (vLLM's `decoder_kv_blocks_ttl`, 480 s)."""
ENFORCE: Final = "enforce_handshake_compat"
"""Setting: whether an engine refuses a peer with another compatibility hash (nixl/base_worker.py)."""
_WITHOUT_CONTEXT: Final = tuple(each.version for each in VERSIONS.values() if not each.context_parallel)
_KEEPS_PUSHED: Final = tuple(each.version for each in VERSIONS.values() if not each.frees_pushed)

_PREFILL_PARAMS: Final[KVParams] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_ANSWERED: Final = (
    Member("do_remote_prefill", Kind.TRUE),
    Member("do_remote_decode", Kind.FALSE),
    Member("remote_block_ids", Kind.BLOCKS),
    Member("remote_engine_id", Kind.TEXT),
    Member("remote_request_id", Kind.TEXT),
    Member("remote_host", Kind.TEXT),
    Member("remote_port", Kind.PORT),
    Member("tp_size", Kind.DEVICES, required=False),
    Member("dcp_size", Kind.DEVICES, required=False),
    Member("pp_size", Kind.DEVICES, required=False),
    Member("remote_block_size", Kind.DEVICES, required=False),
    Member("remote_num_tokens", Kind.COUNT, required=False),
    Member("remote_blocks_expiry_time", Kind.NUMBER, required=False),
    Member("remote_prefill_cached_tokens", Kind.SCALAR, required=False),
    Member("remote_registration_generation", Kind.COUNT, required=False),
    Member("transfer_mode", Kind.SCALAR, required=False),
)
"""What `request_finished` of P returns and `add_new_req_to_recv` of D reads (vLLM 0.32 and 0.33, nixl/metadata.py)."""


def _decode_params(transfer_id: str, prefill: Identity) -> KVParams:
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": prefill.engine_id,
        "remote_host": prefill.host,
        "remote_port": prefill.port,
        "tp_size": prefill.tensor_parallel,
        "pp_size": prefill.pipeline_parallel,
        "remote_request_id": transfer_id,
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
            f"seconds that a prefill engine keeps finished KV for a decode engine. Default: {LEASE_MARGIN_SECONDS:g} "
            "s more than routing.deadlines.handoffSeconds.",
            least=1,
            most=86_400,
            unit="seconds",
        ),
        boolean(
            BIDIRECTIONAL,
            "must be false. Otherwise decode engines would keep the KV of every answer, and nothing reads it.",
        ),
    ),
    transfer=(
        Rule(
            f"!has(self.config.{BIDIRECTIONAL}) || !self.config.{BIDIRECTIONAL}",
            f"decode engines would keep the KV of each answer for minutes, unread; leave out config.{BIDIRECTIONAL}",
            lambda kv: kv.config.get(BIDIRECTIONAL) is not True,
        ),
    ),
    spec=(
        Rule(
            f"!has(self.kvTransfer.config.{LEASE})"
            f" || self.kvTransfer.config.{LEASE} > self.routing.deadlines.handoffSeconds",
            f"prefill would free KV that decode may still read; write kvTransfer.config.{LEASE} above "
            "routing.deadlines.handoffSeconds, or leave it out",
            _lease_covers_handoff,
            (f"kvTransfer.config.{LEASE}", "routing.deadlines.handoffSeconds"),
        ),
        # vLLM 0.32 nixl/base_worker.py and nixl/connector.py raise for the first two; push has no code for the third.
        without_flag(PIPELINE, "NIXL supports one pipeline stage of decode engines", DECODE),
        without_flag(PREFILL_CONTEXT, "NIXL supports no prefill context parallelism of decode engines", DECODE),
        without_flag(
            DECODE_CONTEXT,
            "NIXL push supports no decode context parallelism",
            orders=(Order.DECODE_FIRST, Order.CONCURRENT),
        ),
        of_versions(
            _WITHOUT_CONTEXT,
            without_flag(
                DECODE_CONTEXT,
                f"NIXL of vLLM {', '.join(_WITHOUT_CONTEXT)} supports no decode context parallelism",
            ),
        ),
        of_versions(
            _KEEPS_PUSHED,
            Rule(
                f"!has(self.kvTransfer.order) || self.kvTransfer.order == '{Order.PREFILL_FIRST}'",
                f"with kvTransfer.order DecodeFirst or Concurrent, prefill engines of vLLM {', '.join(_KEEPS_PUSHED)} "
                f"keep each prompt's KV until its lease ends; write kvTransfer.order: {Order.PREFILL_FIRST}, or use "
                "another vLLM",
                lambda spec: spec.order is Order.PREFILL_FIRST,
                ("kvTransfer.order", "engine.image"),
            ),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Nixl(Connector):
    """`spec.kvTransfer.connector: NIXL`."""

    name: str = "NIXL"
    orders: tuple[Order, ...] = (Order.PREFILL_FIRST, Order.DECODE_FIRST, Order.CONCURRENT)
    port_names: Mapping[str, int] = field(default_factory=lambda: {SIDE_CHANNEL: SIDE_CHANNEL_PORT}, hash=False)
    checks: Checks = _CHECKS

    def any_patch(self, config: Mapping[str, Any]) -> bool:
        """Without the hash, engines with one version of the connector pair: also a CPU's build with a GPU's."""
        return not config.get(ENFORCE, True)

    def wire(self, version: str, *, any_patch: bool = False) -> str:
        """All of it: the hash that vLLM's handshake compares contains the version as `/version` answers it
        (nixl/metadata.py, `compute_nixl_compatibility_hash`)."""
        return minor(version) if any_patch else version

    def engine(self, role: Role, order: Order, site: Site, config: Mapping[str, Any]) -> EngineWiring:
        """The side channel binds the address that it sends to peers: the pod's, never a wildcard."""
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

    def lease_config(self, seconds: int) -> Mapping[str, Any]:
        """P's lease. A D that waits for its KV renews it by heartbeats, but not while both legs run at once."""
        return {LEASE: seconds}

    def family(self, order: Order) -> Family:
        """Pull if P is first, otherwise push, with the request ID as transfer ID."""
        if order is Order.PREFILL_FIRST:
            return Pull(prefill_params=_PREFILL_PARAMS, answered=_ANSWERED)
        return Push(
            prefill_params=lambda _transfer_id: _PREFILL_PARAMS,
            decode_params=_decode_params,
            identity=InPrefillAnswer(_identity),
            settles=Settles.BY_DECODE_LEG,
        )


CONNECTOR: Final = Nixl()
