"""Lets vLLM's Mooncake connectors run on a machine without an accelerator: for examples and tests, as a vLLM plugin.

MooncakeConnector's worker asks for the current accelerator's index, which raises on the CPU; the answer reaches a
no-op only. MooncakeStoreConnector's makes a CUDA event to wait for the forward pass, which on the CPU has ended.
"""

from unittest.mock import MagicMock, patch

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector as mooncake
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import connector as store


class MooncakeConnector(mooncake.MooncakeConnector):
    """vLLM's own, built while that index is 0."""

    def __init__(self, *args: object) -> None:
        with patch("torch.accelerator.current_device_index", return_value=0):
            super().__init__(*args)


class MooncakeStoreConnector(store.MooncakeStoreConnector):
    """vLLM's own, whose event does nothing."""

    def wait_for_save(self) -> None:
        with patch("torch.cuda.Event", MagicMock):
            super().wait_for_save()


def register() -> None:
    """Put them in the place of vLLM's."""
    for connector in (MooncakeConnector, MooncakeStoreConnector):
        KVConnectorFactory._registry[connector.__name__] = lambda connector=connector: connector
