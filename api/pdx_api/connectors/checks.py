"""The settings and rules of a connector. API server and `pdx` check them in objects with this connector."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.names import Order
from pdx_api.rule import Rule, cel_list
from pdx_api.vllm.versions import stated, stated_in_cel

EVERY: Final = ("engine", "prefill", "decode")
"""The parts of a spec whose args apply to a pair's engines."""
DECODE: Final = ("engine", "decode")
"""The parts whose args apply to D."""

PIPELINE: Final = ("--pipeline-parallel-size", "-pp")
EXPERT: Final = ("--enable-expert-parallel", "-ep")
DECODE_CONTEXT: Final = ("--decode-context-parallel-size", "-dcp")
PREFILL_CONTEXT: Final = ("--prefill-context-parallel-size", "-pcp")


@dataclass(frozen=True, slots=True)
class Setting:
    """One entry of `spec.kvTransfer.config`. Entries without a Setting are passed to vLLM unchanged."""

    name: str
    schema: Mapping[str, Any] = field(hash=False)
    """Its JSON schema, with a description."""
    holds: Callable[[Any], bool] = field(compare=False)
    """Whether the schema accepts a value."""
    write: str
    """The correction: the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Checks:
    """The settings and rules of one connector. The rules apply to the object as the user writes it."""

    settings: tuple[Setting, ...] = ()
    transfer: tuple[Rule, ...] = ()
    """Rules of `spec.kvTransfer`."""
    transfer_of_others: tuple[Rule, ...] = ()
    """Rules of `spec.kvTransfer` in objects with another connector."""
    spec: tuple[Rule, ...] = ()
    """Rules of the whole spec, in mode Disaggregated."""


def number(name: str, description: str, *, least: int, most: int, unit: str) -> Setting:
    """An integer setting."""
    return Setting(
        name,
        {"type": "integer", "minimum": least, "maximum": most, "description": description},
        lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
        f"write whole {unit} from {least} to {most}",
    )


def choice(name: str, description: str, values: tuple[str, ...]) -> Setting:
    """A setting with one of these values."""
    return Setting(
        name,
        {"type": "string", "enum": list(values), "description": description},
        lambda value: value in values,
        f"write {' or '.join(values)}",
    )


def boolean(name: str, description: str) -> Setting:
    """A setting that is true or false."""
    return Setting(
        name,
        {"type": "boolean", "description": description},
        lambda value: isinstance(value, bool),
        "write true or false",
    )


def text(name: str, description: str, *, longest: int = 256) -> Setting:
    """A string setting."""
    return Setting(
        name,
        {"type": "string", "maxLength": longest, "description": description},
        lambda value: isinstance(value, str) and len(value) <= longest,
        f"write a string of at most {longest} characters",
    )


def without_flag(
    flags: tuple[str, ...], why: str, parts: tuple[str, ...] = EVERY, orders: tuple[Order, ...] = ()
) -> Rule:
    """The rule that no args of these parts contain this flag of vLLM, by any of its names, and no role its field.

    `orders`: the rule applies in these orders only; none of them may be the connector's default. vLLM refuses most of
    these flags too, but only when an engine starts or at the first hand-off.
    """
    absent = " && ".join(
        f"(!has(self.{part}) || !self.{part}.args.exists(a, a.split('=')[0].replace('_', '-') in {cel_list(flags)}))"
        for part in parts
    )
    field = "parallelism.pipeline" if flags == PIPELINE else ""
    roles = [part for part in parts if part != "engine"] if field else []
    absent += "".join(
        f" && (!has(self.{role}) || !has(self.{role}.{field}) || self.{role}.{field} == 1)" for role in roles
    )
    order = "self.kvTransfer.order"
    other = f"!has({order}) || !({order} in {cel_list(orders)}) || " if orders else ""

    def has(part: Any) -> bool:
        return part is not None and any(arg.split("=")[0].replace("_", "-") in flags for arg in part.args)

    def holds(spec: Any) -> bool:
        pools = [pool for role in roles if (pool := getattr(spec, role)) is not None]
        return bool(orders and spec.order not in orders) or not (
            any(has(getattr(spec, part)) for part in parts)
            or any((pool.parallelism.pipeline or 1) > 1 for pool in pools)
        )

    what = f"{field}, and {flags[0]}" if field else flags[0]
    places = ", ".join(f"{part}.args" for part in parts)
    return Rule(f"{other}({absent})" if other else absent, f"{why}; leave out {what} in {places}", holds)


def of_versions(versions: Iterable[str], rule: Rule) -> Rule:
    """The rule, for specs that state one of these versions of vLLM."""
    lacking = tuple(versions)

    def holds(spec: Any) -> bool:
        return stated(spec.engine.version, spec.engine.image) not in lacking or rule.holds(spec)

    return Rule(f"!{stated_in_cel(lacking)} || ({rule.cel})", rule.message, holds, rule.fields)


def without_hybrid_caches(connector: str) -> Rule:
    """For a class that is no SupportsHMA: an engine with the flag does not start (vLLM `kv_connector/factory.py`)."""
    return without_flag(
        ("--no-disable-hybrid-kv-cache-manager",),
        f"{connector} does not support hybrid KV caches, so vLLM disables their manager",
    )
