"""The options of a run, checked, and what follows from them: the workload, the SLO, the arms to compare. Pure."""

import argparse
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pdx_cli import usage
from pdx_cli.bench.analysis.steps import Slo
from pdx_cli.bench.load.traces import TraceError, read
from pdx_cli.bench.load.workload import Fixed, Traced, Workload
from pdx_cli.errors import InputError

_GREATEST: Final = 1_000_000
"""Of factors and rates."""
DEFAULT_SLO: Final = Slo(1.0, 0.05)
"""If neither flags nor the object name one."""
DEFAULT_LENGTHS: Final = (1000, 200)
"""Tokens of prompts and answers, if nothing names any."""


def factor(text: str) -> float:
    """Type of a flag: a positive number, or a fraction such as 1/32."""
    return _positive(text, "a factor", "for example 0.5 or 1/32")


def rate(text: str) -> float:
    """Type of a flag: requests per second, also as a fraction."""
    return _positive(text, "a rate", "for example 4 or 0.5")


def rates(text: str) -> tuple[float, ...]:
    """Type of a flag: requests per second, separated by commas."""
    example = "for example 4 or 2,4,8"
    usage.text(f"write {example}")(text)
    parts = text.split(",")
    if not all(map(_is_number, parts)):
        raise argparse.ArgumentTypeError(f"{text} is not a list of rates; write {example}")
    return tuple(_positive(part.strip(), "a rate", example) for part in parts)


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _positive(text: str, what: str, example: str) -> float:
    """Parse a number above 0, or a fraction of two numbers."""
    usage.text(f"write {example}")(text)
    number, slash, divisor = text.replace(" ", "").partition("/")
    try:
        value = float(number) / float(divisor if slash else 1)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"{text} is not {what}; write {example}")
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is too small; write more than 0, {example}")
    if value >= _GREATEST:
        raise argparse.ArgumentTypeError(f"{text} is too large; write less than {_GREATEST}, {example}")
    return value


def count(least: int, most: int) -> Any:
    """Type of a flag: a whole number."""

    def parse(text: str) -> int:
        usage.text(f"write a whole number from {least} to {most}")(text)
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text} is not possible; write a whole number from {least} to {most}")
        return int(text)

    return parse


def chunks(text: str) -> tuple[int, ...]:
    """Type of a flag: tokens of chunks, separated by commas."""
    example = "for example 512,2048"
    usage.text(f"write {example}")(text)
    parts = text.split(",")
    if zero := next((part for part in parts if re.fullmatch(r"0+|-\d+", part)), None):
        raise argparse.ArgumentTypeError(f"{zero} is too small; write more than 0, {example}")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text} is not a list of chunk sizes; write {example}")
    return tuple(map(int, parts))


def ratios(text: str) -> tuple[tuple[int, int], ...]:
    """Type of a flag: P:D, separated by commas."""
    example = "for example 1:3,2:2"
    usage.text(f"write {example}")(text)
    found = [re.fullmatch(r"([1-9]\d{0,3}):([1-9]\d{0,3})", part.strip()) for part in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text} is not a list of ratios; write {example}")
    return tuple((int(each[1]), int(each[2])) for each in found if each)


def flags(text: str) -> tuple[str, ...]:
    """Type of a flag: flags of another program."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} has a quote without its end; close it") from None


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The flags about the load."""

    isl: int | None
    osl: int | None
    trace: Path | None
    scale_tokens: float = 1.0
    scale_time: float | None = None
    """Factor on the speed of a trace, instead of a search for the rate."""
    poisson: bool = False
    """Whether a trace's own times are replaced."""
    rates: tuple[float, ...] = ()


def workload(options: LoadOptions) -> tuple[Workload, tuple[float, ...]]:
    """Return the workload, and the rates to measure instead of a search; raises InputError."""
    if options.trace is None:
        if options.scale_time or options.scale_tokens != 1 or options.poisson:
            raise InputError("--scale-tokens, --scale-time and --poisson change a trace; name one with --trace.")
        default_prompt, default_answer = DEFAULT_LENGTHS
        return Fixed(options.isl or default_prompt, options.osl or default_answer), options.rates
    if options.isl or options.osl:
        raise InputError("A trace has the lengths of its requests; leave out --isl and --osl, or --trace.")
    if options.scale_time and options.rates:
        raise InputError("--scale-time and --rate both name a speed; use only one of them.")
    try:
        trace = read(options.trace)
    except TraceError as error:
        raise InputError(str(error)) from error
    fixed = (trace.rate * options.scale_time,) if options.scale_time else options.rates
    return Traced(trace, options.scale_tokens, options.poisson), fixed


def slo_of(ttft: float | None, tpot: float | None, spec: Mapping[str, Any]) -> Slo:
    """Return the SLO by flags, or else by `spec.slo`, or else the default."""
    slo = spec.get("slo") or {}
    stated = [slo.get(name) for name in ("ttftMilliseconds", "tpotMilliseconds")]
    first, second = (each / 1000 if isinstance(each, int | float) and each > 0 else math.nan for each in stated)
    return Slo(
        ttft or (DEFAULT_SLO.ttft if math.isnan(first) else first),
        tpot or (DEFAULT_SLO.tpot if math.isnan(second) else second),
    )
