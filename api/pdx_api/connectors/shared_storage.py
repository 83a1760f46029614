"""SharedStorage: P writes KV into a directory that all engines share, and D reads it there (`ExampleConnector`).

Facts: vLLM 0.32 `vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py`, which its authors made for
debugging. What it cannot do is in docs/connectors/shared-storage.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.connectors.base import EngineWiring, SideService, Site
from pdx_api.connectors.checks import (
    DECODE_CONTEXT,
    PIPELINE,
    PREFILL_CONTEXT,
    Checks,
    without_flag,
    without_hybrid_caches,
)
from pdx_api.connectors.families import Family, Pool
from pdx_api.names import Order, Role
from pdx_api.rule import Rule

STORAGE_PATH: Final = "shared_storage_path"
"""Setting for the directory."""


def _saves_whole_prompts(role: Role) -> Rule:
    """Its files carry no rank, and it saves a prompt's KV with the first step (docs/connectors/shared-storage.md)."""
    pool = f"self.{role}"

    def holds(spec: Any) -> bool:
        found = getattr(spec, role)
        if found is None:
            return True
        return bool(found.parallelism.tensor == 1 and found.chunked_prefill.max_batched_tokens is None)

    return Rule(
        f"!has({pool}) || ({pool}.parallelism.tensor == 1 && !has({pool}.chunkedPrefill.maxBatchedTokens))",
        "connector SharedStorage saves whole prompts of one device; leave out parallelism.tensor and "
        f"chunkedPrefill.maxBatchedTokens of spec.{role}",
        holds,
    )


_CHECKS: Final = Checks(
    transfer=(
        Rule(
            "has(self.storage)",
            "connector SharedStorage needs a volume that all engines share; write "
            "storage: {persistentVolumeClaim: {claimName: kv}}",
            lambda kv: kv.storage is not None,
        ),
    ),
    spec=(
        *(
            without_flag(flags, "SharedStorage keeps the KV of one device")
            for flags in (PIPELINE, DECODE_CONTEXT, PREFILL_CONTEXT)
        ),
        without_hybrid_caches("SharedStorage"),
        *(_saves_whole_prompts(role) for role in (Role.PREFILL, Role.DECODE)),
    ),
)


@dataclass(frozen=True, slots=True)
class SharedStorage:
    """`spec.kvTransfer.connector: SharedStorage`."""

    name: str = "SharedStorage"
    orders: tuple[Order, ...] = (Order.PREFILL_FIRST,)
    port_names: Mapping[str, int] = field(default_factory=dict, hash=False)
    services: tuple[SideService, ...] = ()
    checks: Checks = _CHECKS

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
