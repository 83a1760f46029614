"""What each version of vLLM has, as far as it decides what PDX does. Pure.

Each fact is a row of assumptions.txt or differences.txt, which `pdx check-vllm` reads in vLLM's code; a test compares
them with this module.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

TESTED: Final = "0.32"
"""The version with which PDX's tests run real engines."""
_LONGEST: Final = 512
_VERSION: Final = "v?([0-9]{1,3})[.]([0-9]{1,3})([.+_-][^/:@]*)?"
_IMAGE: Final = "(^|.*/)[^/:@]*vllm[^/:@]*:{}(@.*)?"
"""An image whose name contains `vllm`, and whose tag is a version. Other images have versions of their own."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What one version of vLLM has."""

    version: str
    """As `0.32`. Patch releases have the same abilities."""
    nixl: int
    """The version of its NIXL connector. vLLM refuses a hand-off between different ones."""
    context_parallel: bool = True
    """Whether a NIXL pull knows decode context parallelism."""
    store_tensor: bool = True
    """Whether MooncakeStore has `store_tp_size`."""
    answers_hits: bool = True
    """Whether P answers the hits of its prefix cache for D's usage (`remote_prefill_cached_tokens`)."""
    frees_pushed: bool = True
    """Whether P frees KV that it has pushed. Otherwise it keeps it until the lease ends (nixl/push_worker.py,
    `get_transfer_results`, takes only requests that P receives)."""
    reuses_tokens: bool = False
    """Whether D takes the tokens of a chat from P's answer (`prompt_token_ids` in `kv_transfer_params`), instead of
    rendering its messages again (renderers/online_renderer.py, `_reused_prompt_token_ids`). Other versions are not
    known to."""
    ends_silently: bool = False
    """Whether a completion's stream ends with `[DONE]` alone if its KV failed to load, instead of an error event
    (openai/completion/serving.py, `completion_stream_generator`; from 0.32 on it raises before it skips an output)."""
    registers: bool = False
    """Whether P answers the generation of its registered memory (`remote_registration_generation`)."""
    null_params: bool = False
    """Whether each event of a stream has `kv_transfer_params`."""
    nixl_least: str = ""
    """The oldest package `nixl` with which an engine starts; empty: any."""
    mooncake_metrics: bool = False
    """Whether Mooncake's transfers have metrics."""
    dead_text: str = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    """The message of its 500 when its EngineCore is dead."""
    spaces_prompts: bool = False
    """Whether `--prefill-schedule-interval` has an effect without data parallelism (v1/engine/core.py,
    `_should_throttle_prefills`; an older engine accepts the flag and ignores it)."""
    pauses: bool = False
    """Whether a paused engine refuses requests (503 `engine_paused`), instead of queueing them."""


VERSIONS: Final = {
    each.version: each
    for each in (
        Abilities("0.28", nixl=7, context_parallel=False, store_tensor=False, answers_hits=False, ends_silently=True),
        Abilities("0.29", nixl=9, store_tensor=False, answers_hits=False, ends_silently=True),
        Abilities("0.30", nixl=11, answers_hits=False, frees_pushed=False, ends_silently=True),
        Abilities("0.31", nixl=13, ends_silently=True),
        Abilities("0.32", nixl=14, reuses_tokens=True),
        Abilities(
            "0.33",
            nixl=15,
            registers=True,
            null_params=True,
            nixl_least="1.5.0",
            mooncake_metrics=True,
            dead_text="The server had an error while processing your request.",
            spaces_prompts=True,
            pauses=True,
        ),
    )
}
"""The versions that PDX has checked, the oldest first."""
NEWEST: Final = tuple(VERSIONS.values())[-1]
OLDEST: Final = next(iter(VERSIONS.values()))
_OTHERS: Final = (1, 0)
"""Tags from here on are not versions of vLLM: 25.09 of NVIDIA's builds, 1.4.2 of a fork."""


def minor(text: str) -> str:
    """The version that a text such as `v0.32.0-cu130` states, as `0.32`; empty if it states none."""
    found = re.fullmatch(_VERSION, text[: _LONGEST + 1])
    return f"{int(found[1])}.{int(found[2])}" if found else ""


def stated(version: str | None, image: str) -> str:
    """The version of engines with this `engine.version` and this image, as `0.32`; empty if neither states one.

    A tag below the oldest known version, or from 1.0 on, is that of a build with versions of its own.
    """
    if version is not None:
        return minor(version)
    found = re.fullmatch(_IMAGE.format(f"({_VERSION})"), image[: _LONGEST + 1])
    tag = minor(found[2]) if found else ""
    return tag if tag and _order(OLDEST.version) <= _order(tag) < _OTHERS else ""


def stated_in_cel(versions: Iterable[str]) -> str:
    """The condition in CEL that a spec states one of these versions, which are known ones."""
    listed = "|".join(each.replace(".", "[.]") for each in versions)
    one = f"v?({listed})([.+_-][^/:@]*)?"
    return (
        f"(has(self.engine.version) ? self.engine.version.matches('^{one}$') "
        f": self.engine.image.matches('^{_IMAGE.format(one)}$'))"
    )


def abilities(version: str) -> Abilities:
    """What a version has. An unknown one counts as the newest or the oldest known one, an empty one as `TESTED`."""
    known = VERSIONS.get(version or TESTED)
    if known is not None:
        return known
    return NEWEST if _order(version) > _order(NEWEST.version) else OLDEST


def warning(version: str) -> str:
    """What is uncertain about a version, as a sentence; empty if it is known or not stated."""
    if not version or version in VERSIONS:
        return ""
    used = abilities(version).version
    return (
        f"vLLM {version} is not among the versions that PDX has checked ({', '.join(VERSIONS)}); PDX treats it as "
        f"{used}. Run `pdx check-vllm {version}.0` to see what differs."
    )


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
