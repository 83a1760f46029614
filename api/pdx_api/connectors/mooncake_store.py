"""MooncakeStore: engines keep KV in a pool of their own memory, which a `mooncake_master` allocates.

vLLM's class is `MooncakeStoreConnector`. Each P adds memory to the pool and saves into it; D finds a prompt's blocks
through the master and reads them from the P that holds them. Facts: vLLM 0.32 `vllm/distributed/mooncake_store.py`,
`vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/{scheduler,worker}.py`, Mooncake 0.3.13 `mooncake_master`.
"""

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.connectors.base import KV_ROLES, Connector, EngineWiring, SideService, Site
from pdx_api.connectors.checks import (
    DECODE_CONTEXT,
    PIPELINE,
    PREFILL_CONTEXT,
    Checks,
    Setting,
    number,
    of_versions,
    without_flag,
)
from pdx_api.connectors.families import Family, Pool
from pdx_api.connectors.mooncake import CHECKS, DEVICE, PROTOCOL, PROTOCOLS
from pdx_api.names import Order, Role
from pdx_api.rule import Rule
from pdx_api.vllm.versions import VERSIONS

MASTER: Final = "mooncake"
MASTER_ADDRESS: Final = "master_server_address"
"""Setting: the user's own master, as host:port."""
_PROGRAM: Final = "mooncake_master"
_REQUESTS: Final = "requests"
_ADMIN: Final = "admin"

_FILE: Final = "mooncake.json"
_SEGMENT: Final = "global_segment_size"
_BUFFER: Final = "local_buffer_size"
_SAVED_AFTER: Final = 0.05
"""Seconds to write the KV of the last step, some thousand tokens, over a fast network."""
_BUFFER_BYTES: Final = 64 * 2**20
"""vLLM registers its own KV memory and uses no copy buffer; the default of 4 GiB would be wasted."""
_OF_THE_FILE: Final = (MASTER_ADDRESS, "metadata_server", _SEGMENT, _BUFFER, DEVICE, "enable_offload", "tenant_id")
"""Settings that vLLM reads from the file."""


def _master(site: Site, pool_gib: float, block_size: int | None) -> tuple[str, ...]:
    return (
        *(_PROGRAM, "--logtostderr", "--enable_metric_reporting=false"),
        *("--rpc_address", site.host, "--rpc_port", str(site.ports[_REQUESTS])),
        *("--metrics_host", site.host, "--metrics_port", str(site.ports[_ADMIN])),
    )


def _file(role: Role, site: Site, config: Mapping[str, Any]) -> str:
    """A D adds no memory to the pool, so that no KV is lost when it ends."""
    master = site.services.get(MASTER)
    segment = config.get(_SEGMENT, site.pool_bytes) if role is Role.PREFILL else 0
    own = {name: config[name] for name in _OF_THE_FILE if name in config}
    return json.dumps(
        {
            "metadata_server": "P2PHANDSHAKE",
            **({MASTER_ADDRESS: f"{master.host}:{master.ports[_REQUESTS]}"} if master is not None else {}),
            _BUFFER: _BUFFER_BYTES,
            **own,
            "mode": "embedded" if segment else "standalone-store",
            _SEGMENT: segment,
            "protocol": config.get(PROTOCOL, PROTOCOLS[0]),
        },
        sort_keys=True,
    )


def _ranks_agree(spec: Any) -> bool:
    """Otherwise D would load a part of P's KV as all of it, or never find any."""
    if spec.prefill is None or spec.decode is None:
        return True
    tensors = [pool.parallelism.tensor for pool in (spec.prefill, spec.decode)]
    saved_for = spec.kv_transfer.config.get(_STORE_TENSOR)
    return tensors[0] == tensors[1] or (saved_for is not None and not any(saved_for % tensor for tensor in tensors))


_ADDRESS: Final = re.compile(r"[^ :/]{1,253}:[0-9]{1,5}")
_STORE_TENSOR: Final = "store_tp_size"
_WITHOUT_STORE_TENSOR: Final = tuple(each.version for each in VERSIONS.values() if not each.store_tensor)
_SAVED_FOR: Final = f"self.kvTransfer.config.{_STORE_TENSOR}"
_CHECKS: Final = Checks(
    settings=(
        *CHECKS.settings,
        Setting(
            MASTER_ADDRESS,
            {
                "type": "string",
                "maxLength": 259,
                "pattern": f"^{_ADDRESS.pattern}$",
                "description": "your own mooncake_master, as host:port. PDX then starts none.",
            },
            lambda value: isinstance(value, str) and _ADDRESS.fullmatch(value) is not None,
            "write host:port, for example mooncake.llm:50051",
        ),
        number(
            _STORE_TENSOR,
            "the tensor parallelism in which KV is saved: a multiple of prefill's and of decode's, if these differ.",
            least=1,
            most=16,
            unit="devices",
        ),
    ),
    transfer=CHECKS.transfer,
    spec=(
        Rule(
            "!has(self.prefill) || !has(self.decode)"
            " || self.prefill.parallelism.tensor == self.decode.parallelism.tensor"
            f" || (has({_SAVED_FOR})"
            f" && {_SAVED_FOR} % self.prefill.parallelism.tensor == 0"
            f" && {_SAVED_FOR} % self.decode.parallelism.tensor == 0)",
            "MooncakeStore saves the KV of each rank separately; write the same parallelism.tensor for prefill and "
            f"decode, or kvTransfer.config.{_STORE_TENSOR} that is a multiple of both",
            _ranks_agree,
            ("prefill.parallelism.tensor", "decode.parallelism.tensor", f"kvTransfer.config.{_STORE_TENSOR}"),
        ),
        of_versions(
            _WITHOUT_STORE_TENSOR,
            Rule(
                f"!has({_SAVED_FOR})",
                f"vLLM {' and '.join(_WITHOUT_STORE_TENSOR)} have no {_STORE_TENSOR}; leave out "
                f"kvTransfer.config.{_STORE_TENSOR}, or use a newer vLLM",
                lambda spec: _STORE_TENSOR not in spec.kv_transfer.config,
                (f"kvTransfer.config.{_STORE_TENSOR}", "engine.image"),
            ),
        ),
        *(
            without_flag(flags, "MooncakeStore needs the same ranks in both roles", ("prefill", "decode"))
            for flags in (PIPELINE, DECODE_CONTEXT, PREFILL_CONTEXT)
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class MooncakeStore(Connector):
    """`spec.kvTransfer.connector: MooncakeStore`."""

    name: str = "MooncakeStore"
    orders: tuple[Order, ...] = (Order.PREFILL_FIRST,)
    services: tuple[SideService, ...] = (
        SideService(
            name=MASTER,
            ports={_REQUESTS: 50051, _ADMIN: 9003},
            command=_master,
            program=_PROGRAM,
            probe_port=_ADMIN,
            probe_path="/health",
            holds_pool=False,
            replaced_by=MASTER_ADDRESS,
        ),
    )
    checks: Checks = _CHECKS
    recomputes: bool = True

    def engine(self, role: Role, order: Order, site: Site, config: Mapping[str, Any]) -> EngineWiring:
        """D recomputes a prompt whose load fails.

        The master drops the memory of a dead engine only after a while. Until then every other attempt would find the
        same blocks and fail too. The look-up is asynchronous, because the scheduler must not wait for a dead master.
        """
        extra = {name: value for name, value in config.items() if name not in (*_OF_THE_FILE, PROTOCOL)}
        return EngineWiring(
            kv_transfer_config={
                "kv_connector": "MooncakeStoreConnector",
                "kv_role": KV_ROLES[role],
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {
                    "load_async": True,
                    "lookup_async": True,
                    # Names the engine's socket in a directory that all engines of the machine share.
                    "lookup_rpc_port": zlib.crc32(site.files.encode()),
                    # Its keys contain the last part of the model's name and the blocks' contents, not dtype or layout.
                    "cache_prefix": site.revision,
                    **extra,
                },
            },
            env={"MOONCAKE_CONFIG_PATH": f"{site.files}/{_FILE}", "PYTHONHASHSEED": "0"},
            files={_FILE: _file(role, site, config)},
        )

    def family(self, order: Order) -> Family:
        """P saves after its answer, and nothing reports when it has saved: a D that looks up too early recomputes."""
        return Pool(saved_after=_SAVED_AFTER)


CONNECTOR: Final = MooncakeStore()
