"""Flags that would make engines which vLLM cannot pair: each rule with its sentence.

vLLM notices most of it too, but only when an engine starts, at the first hand-off, or never.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.connectors import CONNECTORS
from pdx_api.fields import Rule
from pdx_api.names import Mode, Order

SHARED_FLAGS: Final = (
    *("--dtype", "--kv-cache-dtype", "--block-size", "--revision", "--quantization", "-q", "--hf-overrides"),
    *("--attention-backend", "--disable-hybrid-kv-cache-manager", "--no-disable-hybrid-kv-cache-manager"),
)
"""Flags for what P's and D's KV must have in common: those of one role would make pairs that refuse or garble it."""

SHARED_VARIABLES: Final = ("PYTHONHASHSEED", "VLLM_KV_CACHE_LAYOUT", "VLLM_SSM_CONV_STATE_LAYOUT", "VLLM_MLA_DISABLE")
"""Variables for the same. Pools whose keys differ by PYTHONHASHSEED miss for ever, and nothing says so."""
VARIABLE_IS_NOT_SHARED: Final = Rule(
    f"!(self.name in [{', '.join(map(repr, SHARED_VARIABLES))}])",
    f"P and D must have {', '.join(SHARED_VARIABLES)} in common; write it in engine.env, or leave it out",
    lambda variable: variable.name not in SHARED_VARIABLES,
)

_PIPELINE: Final = ("--pipeline-parallel-size", "-pp")
_DECODE_CONTEXT: Final = ("--decode-context-parallel-size", "-dcp")
_PREFILL_CONTEXT: Final = ("--prefill-context-parallel-size", "-pcp")
_EVERY: Final = ("engine", "prefill", "decode")
_DECODE: Final = ("engine", "decode")
_PULL: Final = (Order.PREFILL_FIRST,)
_PUSH: Final = (Order.DECODE_FIRST, Order.CONCURRENT)


@dataclass(frozen=True, slots=True)
class _Limit:
    """A flag that a connector cannot have."""

    connector: str
    parts: tuple[str, ...]
    """The parts of the spec whose args are meant."""
    flags: tuple[str, ...]
    why: str
    orders: tuple[Order, ...] = (*_PULL, *_PUSH)

    @property
    def message(self) -> str:
        places = ", ".join(f"{part}.args" for part in self.parts)
        return f"{self.why}; leave out {self.flags[0]} in {places}"


_LIMITS: Final = (
    # vLLM 0.32 nixl/base_worker.py and nixl/connector.py raise for the first two; push has no code for the third.
    _Limit("NIXL", _DECODE, _PIPELINE, "D has one pipeline stage with NIXL"),
    _Limit("NIXL", _DECODE, _PREFILL_CONTEXT, "D has no prefill context parallelism with NIXL"),
    _Limit("NIXL", _EVERY, _DECODE_CONTEXT, "NIXL pushes without decode context parallelism", _PUSH),
    # The names of its files carry no rank.
    _Limit("SharedStorage", _EVERY, _PIPELINE, "SharedStorage keeps the KV of one device"),
    _Limit("SharedStorage", _EVERY, _DECODE_CONTEXT, "SharedStorage keeps the KV of one device"),
    _Limit("SharedStorage", _EVERY, _PREFILL_CONTEXT, "SharedStorage keeps the KV of one device"),
    # kv_connector/factory.py: a class that is no SupportsHMA, and an engine told to keep the manager, do not start.
    _Limit(
        "SharedStorage",
        _EVERY,
        ("--no-disable-hybrid-kv-cache-manager",),
        "SharedStorage knows no hybrid caches, so vLLM turns their manager off",
    ),
    _Limit(
        "LMCache",
        _EVERY,
        ("--no-disable-hybrid-kv-cache-manager",),
        "LMCache knows no hybrid caches, so vLLM turns their manager off",
    ),
)


def _words(values: tuple[str, ...]) -> str:
    return f"[{', '.join(repr(str(value)) for value in values)}]"


def _has(spec: Any, part: str, flags: tuple[str, ...]) -> bool:
    found = getattr(spec, part)
    return found is not None and any(arg.split("=")[0].replace("_", "-") in flags for arg in found.args)


def _rule(limit: _Limit) -> Rule:
    absent = " && ".join(
        f"(!has(self.{part}) || !self.{part}.args.exists(a, a.split('=')[0].replace('_', '-') in "
        f"{_words(limit.flags)}))"
        for part in limit.parts
    )
    order = "self.kvTransfer.order"
    unsaid = str(CONNECTORS[limit.connector].orders[0] not in limit.orders).lower()
    other = f"(has({order}) ? !({order} in {_words(limit.orders)}) : {unsaid})"

    def holds(spec: Any) -> bool:
        if spec.mode is not Mode.DISAGGREGATED or spec.kv_transfer.connector != limit.connector:
            return True
        if spec.order not in limit.orders:
            return True
        return not any(_has(spec, part, limit.flags) for part in limit.parts)

    return Rule(
        f"self.mode != '{Mode.DISAGGREGATED}' || self.kvTransfer.connector != '{limit.connector}' || {other} || "
        f"({absent})",
        limit.message,
        holds,
    )


def pairing_rules() -> Iterator[Rule]:
    """The rules of a whole spec."""
    yield from map(_rule, _LIMITS)
