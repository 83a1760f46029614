"""The engines that `pdx up` starts: real or simulated ones, and how many. Pure."""

from enum import StrEnum
from typing import Final

ENGINE_EXTRA: Final = (
    "Its CPU build is the extra `cpu` of pdx-serving (6.6 GB more): run `make install` in a clone of PDX, because pip "
    "cannot resolve the pins of vLLM's packages."
)
"""What provides vLLM, torch and transformers."""
LEAST_LIMIT: Final = 16
"""Engines that any machine may start: simulated ones are small."""


class EngineKind(StrEnum):
    """The program that runs as an engine."""

    VLLM = "vllm"
    SIM = "sim"


def default_limit(cores: int | None) -> int:
    """Return how many engines a machine with so many cores starts at most."""
    return max(LEAST_LIMIT, 4 * (cores or 1))
