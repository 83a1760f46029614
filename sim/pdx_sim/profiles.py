"""Settings of the step loop that follow from published measurements of real engines. Imports settings only.

Each profile names its source and date, and shows how its numbers follow from what was published. Nothing here was
measured by PDX. A profile is a model of one engine under one load: use it to see how queues and transfers behave, not
to predict a deployment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from pdx_sim.settings import SimSettings

_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Profile:
    """Settings, and what they come from."""

    model: str
    device: str
    source: str
    date: str
    derivation: str
    """How the settings follow from the published numbers."""
    settings: Mapping[str, float]

    def apply(self, settings: SimSettings) -> SimSettings:
        """The settings with those of the profile."""
        return replace(settings, **self.settings)  # type: ignore[arg-type]


def default_max_num_seqs(memory_gib: float, device: str = "") -> int:
    """vLLM 0.32's default of --max-num-seqs for a GPU, of a P as of a D (engine/arg_utils.py `get_batch_defaults`)."""
    return 1024 if memory_gib >= 160 or (memory_gib >= 70 and "a100" not in device.lower()) else 256


def default_max_num_batched_tokens(memory_gib: float, device: str = "") -> int:
    """vLLM 0.32's default of --max-num-batched-tokens for a GPU of an API server (same function)."""
    if memory_gib >= 160:
        return 16384
    return 8192 if memory_gib >= 70 and "a100" not in device.lower() else 2048


_PREFILL_SECONDS: Final = {2083: 0.18923, 16664: 1.29572}
"""Published: prompt tokens of a batch -> seconds until all first tokens (batches of 1 and of 8 prompts)."""
_DECODE_SECONDS: Final = {1: 16.02985, 32: 19.28932}
"""Published: sequences -> seconds for 900 tokens each (prompts of 138 tokens)."""
_STEPS: Final = 900

_B: Final = (_DECODE_SECONDS[32] - _DECODE_SECONDS[1]) / _STEPS / (32 - 1)
_A: Final = _DECODE_SECONDS[1] / _STEPS - _B
_C: Final = (_PREFILL_SECONDS[16664] - _PREFILL_SECONDS[2083]) / (16664 - 2083)

_KV_BYTES: Final = 80 * 2 * 8 * 128 * 2
"""Layers * (keys and values) * KV heads * head size * bytes of bfloat16."""
_WEIGHTS: Final = 70.55e9 * 2
_H100_MEMORY: Final = 79.6 * _GIB
_UTILIZATION: Final = 0.92
"""vLLM 0.32's default of --gpu-memory-utilization."""
_BLOCK: Final = 16

LLAMA_70B: Final = Profile(
    model="Llama 3.3 70B, bfloat16, tensor parallel 4",
    device="4 x H100 80 GB",
    source=(
        "Piotr Mazurek, github.com/tugot17/tokenomics-from-first-principles, experiments_massive/"
        "llama_33_70b_seq2048_out1.json and llama_33_70b_seq103_out900.json: the data of tensoreconomics.com, "
        "'LLM Inference Economics from First Principles' (vLLM). KV rate: Mooncake team, 'vLLM with Mooncake Transfer "
        "Engine Benchmark' (2025), Qwen3-8B over 8 ConnectX-7 between two nodes with 8 x H800"
    ),
    date="2025-03-21 and 2025-03-22",
    derivation=(
        "Published: 900 tokens take 16.030 s alone and 19.289 s in a batch of 32, so a step takes 17.81 ms and 21.43 "
        "ms: b = (21.43 - 17.81) / 31 = 0.117 ms per sequence, a = 17.81 - b = 17.69 ms. Published: 2,083 prompt "
        "tokens take 0.189 s and 8 * 2,083 take 1.296 s: c = (1.296 - 0.189) / (7 * 2,083) = 75.9 us per token. "
        "Check: a + b + 2,083 c = 176 ms, measured 189 ms; batches of 2 to 16 decode within 1.2 % of a + b n; 32 "
        "prompts took 5.85 s, the model says 5.22 s. Computed from sizes, not measured: KV of 320 KiB per token; 4 * "
        "79.6 GiB * 0.92 less 141 GB of weights leave 529,000 tokens, an upper bound, because activations and graphs "
        "are not subtracted. Published: 142.25 GB/s through 8 adapters; 4 of them, one per GPU, carry half: 71 GB/s. "
        "Limits: vLLM 0.32's defaults for an H100 (1,024 sequences, 8,192 tokens of a step)"
    ),
    settings=MappingProxyType(
        {
            "step_seconds": _A,
            "step_sequence_seconds": _B,
            "step_token_seconds": _C,
            "max_running": default_max_num_seqs(79.6, "H100"),
            "max_num_batched_tokens": default_max_num_batched_tokens(79.6, "H100"),
            "kv_bytes_per_token": _KV_BYTES,
            "block_size": _BLOCK,
            "num_blocks": int((4 * _H100_MEMORY * _UTILIZATION - _WEIGHTS) / _KV_BYTES / _BLOCK),
            "max_model_len": 131072,
            "engine_gigabytes_per_second": 142.25 / 2,
        }
    ),
)

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType({"llama-3.3-70b-4xh100": LLAMA_70B})
"""By the name that `pdx sim --profile` accepts."""
