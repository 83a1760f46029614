"""What a connector asks of the object that names it: told in its own file, checked by the API server and by `pdx`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.names import Order
from pdx_api.rule import Rule, cel_list

EVERY: Final = ("engine", "prefill", "decode")
"""The parts of a spec whose args reach a pair's engines."""
DECODE: Final = ("engine", "decode")
"""Those that reach D."""

PIPELINE: Final = ("--pipeline-parallel-size", "-pp")
DECODE_CONTEXT: Final = ("--decode-context-parallel-size", "-dcp")
PREFILL_CONTEXT: Final = ("--prefill-context-parallel-size", "-pcp")


@dataclass(frozen=True, slots=True)
class Setting:
    """One entry of `spec.kvTransfer.config`. Entries that no connector names go to vLLM as they are."""

    name: str
    schema: Mapping[str, Any] = field(hash=False)
    """Its JSON schema, with a description."""
    holds: Callable[[Any], bool] = field(compare=False)
    """Whether a value is one that the schema takes."""
    write: str
    """What to write instead: the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Checks:
    """What holds where this is the connector. Each rule is of the object as a user writes it."""

    settings: tuple[Setting, ...] = ()
    transfer: tuple[Rule, ...] = ()
    """Of `spec.kvTransfer`."""
    spec: tuple[Rule, ...] = ()
    """Of the whole spec, in mode Disaggregated."""


def number(name: str, description: str, *, least: int, most: int, unit: str) -> Setting:
    """A setting that is a whole number of units."""
    return Setting(
        name,
        {"type": "integer", "minimum": least, "maximum": most, "description": description},
        lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
        f"write whole {unit} from {least} to {most}",
    )


def choice(name: str, description: str, values: tuple[str, ...]) -> Setting:
    """A setting that is one of some words."""
    return Setting(
        name,
        {"type": "string", "enum": list(values), "description": description},
        lambda value: value in values,
        f"write {' or '.join(values)}",
    )


def text(name: str, description: str, *, longest: int = 256) -> Setting:
    """A setting that is a text."""
    return Setting(
        name,
        {"type": "string", "maxLength": longest, "description": description},
        lambda value: isinstance(value, str) and len(value) <= longest,
        f"write a text of at most {longest} characters",
    )


def without_flag(
    flags: tuple[str, ...], why: str, parts: tuple[str, ...] = EVERY, orders: tuple[Order, ...] = ()
) -> Rule:
    """The rule of a spec that none of its parts has this flag of vLLM, by any of its names.

    `orders`: only in these, of which none is the connector's default. vLLM notices most of it too, but only when an
    engine starts, at the first hand-off, or never.
    """
    absent = " && ".join(
        f"(!has(self.{part}) || !self.{part}.args.exists(a, a.split('=')[0].replace('_', '-') in {cel_list(flags)}))"
        for part in parts
    )
    order = "self.kvTransfer.order"
    other = f"!has({order}) || !({order} in {cel_list(orders)}) || " if orders else ""

    def has(found: Any) -> bool:
        return found is not None and any(arg.split("=")[0].replace("_", "-") in flags for arg in found.args)

    def holds(spec: Any) -> bool:
        return bool(orders and spec.order not in orders) or not any(has(getattr(spec, part)) for part in parts)

    places = ", ".join(f"{part}.args" for part in parts)
    return Rule(f"{other}({absent})" if other else absent, f"{why}; leave out {flags[0]} in {places}", holds)


def without_hybrid_caches(connector: str) -> Rule:
    """vLLM's `kv_connector/factory.py`: a class that is no SupportsHMA and an engine told to keep the manager of
    hybrid caches do not start."""
    return without_flag(
        ("--no-disable-hybrid-kv-cache-manager",),
        f"{connector} knows no hybrid caches, so vLLM turns their manager off",
    )
