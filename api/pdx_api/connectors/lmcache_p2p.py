"""LMCacheP2P: each engine saves its KV in its own `lmcache server`, and the servers read from each other.

Servers find each other through one `lmcache coordinator` for each revision, and read by NIXL from memory to memory.
Facts: LMCache 0.5.6 `lmcache/v1/multiprocess/modules/p2p_controller.py`, `lmcache/v1/mp_coordinator/`,
`lmcache/v1/distributed/{l2_adapters/p2p_l2_adapter,transfer_channel/impl/nixl_impl}.py`.
"""

from dataclasses import dataclass
from typing import Final

from pdx_api.connectors.base import SideService, Site
from pdx_api.connectors.checks import Checks, without_hybrid_caches
from pdx_api.connectors.lmcache import ADMIN, PORTS, PROGRAM, REQUESTS, SERVER, LMCache, server_command

_COORDINATOR: Final = "peers"
_HTTP: Final = "http"
_CHANNEL: Final = "channel"
_HEARTBEAT_SECONDS: Final = 1
"""A server drops a peer after four missed heartbeats."""
_SILENT_SECONDS: Final = 5
"""Seconds without a heartbeat until the coordinator drops a server. Until then each look-up waits 3 s for it."""
_READ_SECONDS: Final = 10
_START: Final = 'exec "$@" --p2p-advertise-url "start-$(date +%s)://$0"'
"""A peer caches a server by its URL, and its reads from a restarted server would fail. The scheme, which LMCache
ignores, makes the URL of each start different."""


def _coordinator(site: Site, pool_gib: float, block_size: int | None) -> tuple[str, ...]:
    return (
        *(PROGRAM, "coordinator", "--host", site.host, "--port", str(site.ports[_HTTP])),
        *("--instance-timeout", str(_SILENT_SECONDS), "--health-check-interval", "1"),
    )


def _server(site: Site, pool_gib: float, block_size: int | None) -> tuple[str, ...]:
    coordinator = site.services[_COORDINATOR]
    return (
        *("sh", "-c", _START, f"{site.host}:{site.ports[_CHANNEL]}"),
        *server_command(site, pool_gib, block_size),
        *("--no-l1-use-lazy", "--instance-id", f"{site.host}:{site.ports[REQUESTS]}"),
        *("--p2p-lookup-timeout", str(_READ_SECONDS), "--p2p-load-timeout", str(_READ_SECONDS)),
        *("--coordinator-url", f"http://{coordinator.host}:{coordinator.ports[_HTTP]}"),
        *("--coordinator-advertise-ip", site.host, "--coordinator-heartbeat-interval", str(_HEARTBEAT_SECONDS)),
    )


_CHECKS: Final = Checks(spec=(without_hybrid_caches("LMCacheP2P"),))


@dataclass(frozen=True, slots=True)
class LMCacheP2P(LMCache):
    """`spec.kvTransfer.connector: LMCacheP2P`.

    An engine uses the server in its own pod only. D's server looks up its peers when D looks up. P pins nothing for a
    D: a server evicts the least recently used KV, and never KV that a peer reads.
    """

    name: str = "LMCacheP2P"
    services: tuple[SideService, ...] = (
        SideService(
            name=_COORDINATOR,
            ports={_HTTP: 9300},
            command=_coordinator,
            program=PROGRAM,
            probe_port=_HTTP,
            probe_path="/healthz",
            holds_pool=False,
            title="lmcache coordinator",
        ),
        SideService(
            name=SERVER,
            ports={**PORTS, _CHANNEL: 5556},
            command=_server,
            program=PROGRAM,
            probe_port=ADMIN,
            probe_path="/healthcheck",
            is_sidecar=True,
        ),
    )
    checks: Checks = _CHECKS


CONNECTOR: Final = LMCacheP2P()
