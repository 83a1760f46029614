"""SharedStorage: P writes KV to a directory that all engines share, and D reads it there (`ExampleConnector`).

Facts: vLLM 0.32 `vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py`, which its authors wrote
for debugging. Its limits are in docs/connectors/shared-storage.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.connectors.base import Connector, EngineWiring, Site
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
"""Setting: the directory."""


def _saves_whole_prompts(role: Role) -> Rule:
    """File names contain no rank, and a prompt's KV is saved in the first step (docs/connectors/shared-storage.md)."""
    pool = f"self.{role}"

    def holds(spec: Any) -> bool:
        part = getattr(spec, role)
        if part is None:
            return True
        return bool(part.parallelism.tensor == 1 and part.chunked_prefill.max_batched_tokens is None)

    return Rule(
        f"!has({pool}) || ({pool}.parallelism.tensor == 1 && !has({pool}.chunkedPrefill.maxBatchedTokens))",
        "connector SharedStorage supports only whole prompts on one device; leave out parallelism.tensor and "
        f"chunkedPrefill.maxBatchedTokens of spec.{role}",
        holds,
        (f"{role}.parallelism.tensor", f"{role}.chunkedPrefill.maxBatchedTokens"),
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
            without_flag(flags, "SharedStorage supports only one device")
            for flags in (PIPELINE, DECODE_CONTEXT, PREFILL_CONTEXT)
        ),
        without_hybrid_caches("SharedStorage"),
        *(_saves_whole_prompts(role) for role in (Role.PREFILL, Role.DECODE)),
    ),
)


@dataclass(frozen=True, slots=True)
class SharedStorage(Connector):
    """`spec.kvTransfer.connector: SharedStorage`."""

    name: str = "SharedStorage"
    orders: tuple[Order, ...] = (Order.PREFILL_FIRST,)
    checks: Checks = _CHECKS

    def engine(self, role: Role, order: Order, site: Site, config: Mapping[str, Any]) -> EngineWiring:
        """Both roles save and look up, whatever their kv_role is.

        Chunked prefill is off because a prompt is saved in its first step. Prefix caching is off because vLLM subtracts
        the tokens in an engine's own prefix cache from the tokens found, and the difference can be negative.
        """
        return EngineWiring(
            kv_transfer_config={
                "kv_connector": "ExampleConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {STORAGE_PATH: site.storage, **config},
            },
            args=("--no-enable-chunked-prefill", "--no-enable-prefix-caching"),
        )

    def family(self, order: Order) -> Family:
        """P saves within the forward pass of the prompt, before it answers."""
        return Pool()


CONNECTOR: Final = SharedStorage()
