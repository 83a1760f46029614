"""Lets vLLM's MooncakeConnector start on a machine without an accelerator: for examples and tests, as a vLLM plugin.

Its worker asks for the current accelerator's index, which raises on the CPU; the answer reaches a no-op only.
"""

from unittest.mock import patch

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector as mooncake


class MooncakeConnector(mooncake.MooncakeConnector):
    """vLLM's own, built while that index is 0."""

    def __init__(self, *args: object) -> None:
        with patch("torch.accelerator.current_device_index", return_value=0):
            super().__init__(*args)


def register() -> None:
    """Put it in the place of vLLM's."""
    KVConnectorFactory._registry["MooncakeConnector"] = lambda: MooncakeConnector
