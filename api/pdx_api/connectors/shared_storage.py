"""SharedStorage: P writes KV into a directory that all engines share, and D reads it there (`ExampleConnector`).

Facts: vLLM 0.32 `vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py`, which its authors made for
debugging. What it cannot do is in docs/connectors/shared-storage.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.connectors.base import EngineWiring, SideService, Site
from pdx_api.connectors.families import Family, Pool
from pdx_api.names import Order, Role

STORAGE_PATH: Final = "shared_storage_path"
"""Setting for the directory."""


@dataclass(frozen=True, slots=True)
class SharedStorage:
    """`spec.kvTransfer.connector: SharedStorage`."""

    name: str = "SharedStorage"
    orders: tuple[Order, ...] = (Order.PREFILL_FIRST,)
    port_names: Mapping[str, int] = field(default_factory=dict, hash=False)
    services: tuple[SideService, ...] = ()

    def engine(self, role: Role, order: Order, site: Site, config: Mapping[str, Any]) -> EngineWiring:
        """Both roles save and look up, whatever their kv_role.

        A prompt is saved with its first step, so it must not be cut; and what an engine's own prefix cache holds is
        subtracted from what was found, which can fall below nothing.
        """
        return EngineWiring(
            kv_transfer_config={
                "kv_connector": "ExampleConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {STORAGE_PATH: site.storage, **config},
            },
            args=("--no-enable-chunked-prefill", "--no-enable-prefix-caching"),
        )

    def keeping(self, seconds: int) -> Mapping[str, Any]:
        """Nothing is kept for a D."""
        return {}

    def family(self, order: Order) -> Family:
        """P saves within the forward pass of the prompt, before it answers."""
        return Pool()


CONNECTOR: Final = SharedStorage()
