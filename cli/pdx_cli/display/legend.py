"""What the figures on the screen are, and in which order the engines are. Pure."""

from enum import StrEnum
from typing import Final

SOURCES: Final = """\
in flight   requests; one may be at a prefill and a decode engine at once
RUN, WAIT   vllm:num_requests_running, vllm:num_requests_waiting of each engine
KV          vllm:kv_cache_usage_perc: the share of its KV blocks in use
IN/S, OUT/S vllm:prompt_tokens_total, vllm:generation_tokens_total, per second
TTFT        pdx_phase_seconds{phase="first_token"} of the gateways, with queue
TPOT        vllm:request_time_per_output_token_seconds, else
            vllm:inter_token_latency_seconds: mean of the requests that ended
REMOTE      vllm:prompt_tokens_by_source_total, source external_kv_transfer
EVENT       retries, shed requests, ejections, settlements of the gateways
phases      pdx_phase_seconds; pairs: /pdx/verification of the gateways"""
"""Where each figure comes from, in lines of at most 80 characters."""


class Sort(StrEnum):
    """By which column the engines are sorted."""

    STATE = "state"
    NAME = "name"
    KV = "kv"
    QUEUE = "queue"
    OUTPUT = "output"
