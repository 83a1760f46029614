"""A simulated engine: vLLM's HTTP API and the KV protocols, with timings and faults, without a model.

Imports pdx_api only. Each name is imported when it is used: the engine's HTTP server takes long.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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

_HOMES: Final = {
    **dict.fromkeys(("Counts", "Violation"), "core.counters"),
    "Leg": "core.sequence",
    **dict.fromkeys(("chat_tokens", "expected_text", "tokenize"), "core.tokens"),
    "SimEngine": "engine",
    **dict.fromkeys(("Fault", "FaultKind", "Faults"), "faults"),
    **dict.fromkeys(("PROFILES", "Profile"), "profiles"),
    **dict.fromkeys(("OnLoadFailure", "SimSettings"), "settings"),
}
"""Name -> the module that has it."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
