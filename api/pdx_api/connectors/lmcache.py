"""LMCache: engines save and find KV in the `lmcache server` of their revision (`LMCacheMPConnector`).

Engines reach the server's pool over TCP (LMCache's engine-driven transfer), so both may run on any nodes.
Facts: vLLM 0.32 `vllm/distributed/kv_transfer/kv_connector/v1/lmcache_mp_connector.py`, LMCache 0.5.6
`lmcache/v1/multiprocess/{config,transfer_context/worker_transfer}.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.connectors.base import Connector, EngineWiring, SideService, Site
from pdx_api.connectors.checks import Checks, without_hybrid_caches
from pdx_api.connectors.families import Family, Pool
from pdx_api.names import PORT_METRICS, Order, Role

SERVER: Final = "lmcache"
PROGRAM: Final = "lmcache"
REQUESTS: Final = "requests"
ADMIN: Final = "admin"
PORTS: Final = {REQUESTS: 5555, ADMIN: 8080, PORT_METRICS: 9464}
_CHUNK: Final = 128
"""Tokens that are saved and found together; a multiple of every device's block (CPU 128, GPU 16)."""


def server_command(site: Site, pool_gib: float, block_size: int | None) -> tuple[str, ...]:
    """An `lmcache server` that keeps KV in its memory."""
    chunk = _CHUNK if block_size is None or _CHUNK % block_size == 0 else block_size
    return (
        *(PROGRAM, "server", "--host", site.host, "--port", str(site.ports[REQUESTS])),
        *("--http-host", site.host, "--http-port", str(site.ports[ADMIN])),
        *("--prometheus-port", str(site.ports[PORT_METRICS]), "--disable-grpc-metrics"),
        *("--supported-transfer-mode", "engine_driven", "--chunk-size", str(chunk)),
        *("--eviction-policy", "LRU", "--l1-size-gb", f"{pool_gib:g}"),
    )


_KV_ROLES: Final = {Role.PREFILL: "kv_both", Role.DECODE: "kv_consumer"}


_CHECKS: Final = Checks(spec=(without_hybrid_caches("LMCache"),))


@dataclass(frozen=True, slots=True)
class LMCache(Connector):
    """`spec.kvTransfer.connector: LMCache`."""

    name: str = "LMCache"
    orders: tuple[Order, ...] = (Order.PREFILL_FIRST,)
    services: tuple[SideService, ...] = (
        SideService(
            name=SERVER,
            ports=PORTS,
            command=server_command,
            program=PROGRAM,
            probe_port=ADMIN,
            probe_path="/healthcheck",
        ),
    )
    checks: Checks = _CHECKS
    recomputes: bool = True

    def engine(self, role: Role, order: Order, site: Site, config: Mapping[str, Any]) -> EngineWiring:
        """Wiring of an engine. Short timeouts and heartbeats let it continue when its server fails.

        P saves and looks up; D only looks up. In an engine that saves, a request that ends while its KV is being
        loaded, because the load fails or the client disconnects, may end the whole engine
        (github.com/LMCache/LMCache/issues/4938, github.com/vllm-project/vllm/issues/43226). D recomputes a prompt
        whose load fails: for seconds after a server's return every other attempt would fail too.
        """
        server = site.services[SERVER]
        return EngineWiring(
            kv_transfer_config={
                "kv_connector": "LMCacheMPConnector",
                "kv_role": _KV_ROLES[role],
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {
                    "lmcache.mp.host": f"tcp://{server.host}",
                    "lmcache.mp.port": server.ports[REQUESTS],
                    "lmcache.mp.mq_timeout": 10,
                    "lmcache.mp.heartbeat_interval": 2,
                    **config,
                },
            },
            env={"LMCACHE_MP_TRANSFER_MODE": "engine_driven", "PYTHONHASHSEED": "0"},
        )

    def family(self, order: Order) -> Family:
        """P saves before it answers. It also looks up, so it may not be stopped: see `engine`."""
        return Pool(stops_prefill=False)


CONNECTOR: Final = LMCache()
