"""A simulated engine: vLLM's HTTP API and the KV protocols, with timings and faults, without a model.

Imports pdx_api only.
"""

from pdx_sim.core.counters import Counts, Violation
from pdx_sim.core.sequence import Leg
from pdx_sim.core.tokens import chat_tokens, expected_text, tokenize
from pdx_sim.engine import SimEngine
from pdx_sim.faults import Fault, FaultKind, Faults
from pdx_sim.profiles import PROFILES, Profile
from pdx_sim.settings import OnLoadFailure, SimSettings

__all__ = [
    "PROFILES",
    "Counts",
    "Fault",
    "FaultKind",
    "Faults",
    "Leg",
    "OnLoadFailure",
    "Profile",
    "SimEngine",
    "SimSettings",
    "Violation",
    "chat_tokens",
    "expected_text",
    "tokenize",
]
