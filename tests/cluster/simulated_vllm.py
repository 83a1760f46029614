"""Takes the place of vLLM's program in a pod: starts the simulated engine that vLLM's command line describes."""

import argparse
import json
import os
import sys

from pdx_api.names import Role
from pdx_sim.main import run
from pdx_sim.settings import SimSettings

_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


def settings(arguments: list[str], address: str, side_port: int) -> SimSettings:
    """The settings of `serve MODEL …`; `address` is the pod's."""
    parser = argparse.ArgumentParser()
    for flag in ("--served-model-name", "--kv-transfer-config"):
        parser.add_argument(flag, default="")
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    found, _ = parser.parse_known_args(arguments)
    role = _ROLES[json.loads(found.kv_transfer_config)["kv_role"]] if found.kv_transfer_config else Role.AGGREGATED
    return SimSettings(
        role=role,
        model=found.served_model_name,
        host=address,
        port=found.port,
        side_channel_host=address,
        side_channel_port=side_port if role is not Role.AGGREGATED else 0,
        step_seconds=0.01,
        step_token_seconds=1e-5,
        max_num_batched_tokens=found.max_num_batched_tokens,
    )


if __name__ == "__main__":
    port = int(os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "0"))
    sys.exit(run(settings(sys.argv[1:], os.environ["POD_IP"], port)))
