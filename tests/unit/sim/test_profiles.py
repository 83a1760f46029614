"""Profiles: the model's times against the published ones, and vLLM's defaults for GPUs."""

import re

import pytest

from pdx_sim.core.blocks import BlockPool
from pdx_sim.core.scheduler import Limits, Scheduler, StepCost, Work
from pdx_sim.profiles import LLAMA_70B, PROFILES, default_max_num_batched_tokens, default_max_num_seqs
from pdx_sim.settings import SimSettings

DECODE = {1: 16.02985, 2: 16.13753, 4: 16.52955, 8: 16.87623, 16: 17.62416, 32: 19.28932}
PREFILL = {1: 0.18923, 2: 0.34990, 4: 0.65147, 8: 1.29572, 16: 2.98499, 32: 5.85305}


def seconds(batch: int, prompt: int, output: int) -> float:
    """What the profile's engine needs for a batch of equal requests that arrive together."""
    settings = LLAMA_70B.apply(SimSettings())
    cost = StepCost(settings.step_seconds, settings.step_sequence_seconds, settings.step_token_seconds)
    limits = Limits(settings.max_running, settings.max_num_batched_tokens, 0, settings.block_size)
    loop = Scheduler(limits, cost, BlockPool(settings.num_blocks))
    for index in range(batch):
        loop.add(Work(str(index), prompt, output))
    total = 0.0
    while (step := loop.schedule()[1]) is not None:
        total += step.seconds
        loop.complete(step)
    return total


@pytest.mark.parametrize("batch", DECODE)
def test_decodes_take_the_published_time(batch: int) -> None:
    assert seconds(batch, 138, 900) == pytest.approx(DECODE[batch], rel=0.03)


@pytest.mark.parametrize("batch", PREFILL)
def test_prefills_take_the_published_time(batch: int) -> None:
    assert seconds(batch, 2083, 1) == pytest.approx(PREFILL[batch], rel=0.13)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_names_its_source_and_its_settings_are_possible(name: str) -> None:
    profile = PROFILES[name]
    assert all((profile.model, profile.device, profile.source, profile.derivation))
    assert re.search(r"20\d\d-\d\d-\d\d", profile.date)
    assert profile.apply(SimSettings()).step_seconds > 0


@pytest.mark.parametrize(
    ("memory_gib", "device", "sequences", "tokens"),
    [
        (180, "B200", 1024, 16384),
        (141, "H200", 1024, 8192),
        (79.6, "H100", 1024, 8192),
        (79.6, "A100", 256, 2048),
        (48, "L40S", 256, 2048),
    ],
)
def test_vllms_default_limits(memory_gib: float, device: str, sequences: int, tokens: int) -> None:
    assert default_max_num_seqs(memory_gib, device) == sequences
    assert default_max_num_batched_tokens(memory_gib, device) == tokens


def test_limits_without_a_profile_are_those_of_a_small_gpu() -> None:
    assert SimSettings().max_running == default_max_num_seqs(48)
    assert SimSettings().max_num_batched_tokens == default_max_num_batched_tokens(48)
