"""Whether the arms differ only in what is compared: sentences about every other difference. Pure.

CUDA graphs that one arm lacks change TPOT 30-fold and reverse a verdict (sgl-project/sglang-omni#1599), so arms whose
flags differ are refused, not compared with a note.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.names import ENGINE_CONTAINER
from pdx_api.spec.types import Pool, Spec

_COMPARED: Final = ("--max-num-batched-tokens", "--prefill-schedule-interval", "--tensor-parallel-size")
"""Flags that differ on purpose: the size of chunks, the steps between them, and the devices of an engine."""


@dataclass(frozen=True, slots=True)
class State:
    """The engines of an arm when its measurement begins."""

    name: str
    cold: tuple[str, ...] = ()
    """Engines that the gateway has not warmed up, or has ejected since."""
    prefix_caching: bool | None = None
    """Whether engines keep prefixes; None: they do not report it."""
    images: tuple[str, ...] = ()


def differences(spec: Spec) -> list[str]:
    """Return what differs between P, D and the aggregated engines besides what is compared, one sentence each."""
    pools = {
        "prefill": spec.prefill or Pool(),
        "decode": spec.decode or Pool(),
        "aggregated": spec.aggregated or spec.decode or Pool(),
    }
    found: list[str] = []
    for one, other in (("prefill", "aggregated"), ("decode", "aggregated")):
        found += _between(one, pools[one], other, pools[other])
    return list(dict.fromkeys(found))


def _between(one: str, left: Pool, other: str, right: Pool) -> Iterator[str]:
    names = f"spec.{one} and spec.{other}"
    if lacking := _set_apart(_flags(left.args), _flags(right.args)):
        yield f"{names} have different args ({', '.join(lacking)}); make them equal, in both or in spec.engine.args."
    variables = [{each.name: str(each.value or each.value_from) for each in pool.env} for pool in (left, right)]
    if lacking := _set_apart(*variables):
        yield f"{names} have different env ({', '.join(lacking)}); make them equal, in both or in spec.engine.env."
    if left.chunked_prefill.enabled != right.chunked_prefill.enabled:
        yield f"{names} differ in chunkedPrefill.enabled; make them equal."
    containers = [_container(pool) for pool in (left, right)]
    if lacking := _set_apart(*({k: str(v) for k, v in each.items()} for each in containers)):
        yield f"The podTemplates of {names} change the engine's container differently ({', '.join(lacking)})."


def _set_apart(left: Mapping[str, str], right: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*left, *right} if left.get(name) != right.get(name))


def _flags(args: Sequence[str]) -> dict[str, str]:
    """Flag -> value of a command line, without those that are compared."""
    found: dict[str, str] = {}
    flag = ""
    for arg in args:
        if arg.startswith("--"):
            flag, _, value = arg.partition("=")
            flag = flag.replace("_", "-")
            found[flag] = value
        elif flag:
            found[flag] = f"{found[flag]} {arg}".strip()
    return {name: value for name, value in found.items() if name not in _COMPARED}


def _container(pool: Pool) -> dict[str, Any]:
    """What a podTemplate changes of the engine: its image, its variables."""
    overlay = (pool.pod_template.overlay() if pool.pod_template else {}).get("spec") or {}
    engine: Mapping[str, Any] = next(
        (each for each in overlay.get("containers") or () if each.get("name") == ENGINE_CONTAINER), {}
    )
    return {key: engine[key] for key in ("image", "env", "args", "command") if key in engine}


def unequal_states(states: Sequence[State]) -> list[str]:
    """Return how the last arm differs from the first when its measurement begins."""
    first, last = states[0], states[-1]
    found = []
    caching = (first.prefix_caching, last.prefix_caching)
    if None not in caching and caching[0] != caching[1]:
        with_cache, without = (first, last) if first.prefix_caching else (last, first)
        found.append(
            f"{with_cache.name} has a prefix cache and {without.name} has none; set --enable-prefix-caching or "
            "--no-enable-prefix-caching in spec.engine.args."
        )
    if first.images != last.images and first.images and last.images:
        found.append(f"{first.name} runs {', '.join(first.images)} and {last.name} runs {', '.join(last.images)}.")
    return found
