"""Times and objectives on a command line. Pure."""

import argparse
import re
from dataclasses import dataclass
from typing import Final

from pdx_cli import usage

_UNITS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "min": 60.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"(-?(?:\d+(?:\.\d*)?|\.\d+))(ms|s|min|m|h|)", re.ASCII)
_LONGEST: Final = 10_000_000
"""Seconds."""
_EXAMPLE: Final = "for example ttft=2s,tpot=50ms"


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a user or an object states, in seconds. None: nothing."""

    ttft: float | None = None
    tpot: float | None = None
    source: str = ""
    """For example `spec.slo`."""


def duration(text: str) -> float:
    """Type of a flag: a time such as `30ms`, `1.5s`, `2min`, or seconds."""
    example = "for example 30ms, 1.5s or 2min"
    usage.text(f"write {example}")(text)
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is not a time; write {example}")
    value = float(found[1]) * _UNITS[found[2]]
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is too short; write more than 0, {example}")
    if value >= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text} is too long; write at most {_LONGEST // 3600}h, {example}")
    return value


def objectives(text: str) -> Objectives:
    """Type of a flag: `ttft=2s,tpot=50ms`, or one of the two."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in ("ttft", "tpot") or name in found:
            raise argparse.ArgumentTypeError(f"{text!r} is no pair of objectives; write {_EXAMPLE}")
        found[name] = duration(value)
    return Objectives(found.get("ttft"), found.get("tpot"), "--slo")


def add_objectives(parser: argparse.ArgumentParser) -> None:
    """Add `--slo`."""
    parser.add_argument(
        "--slo",
        type=objectives,
        metavar="OBJECTIVES",
        help=f"longest TTFT and TPOT, {_EXAMPLE} (default: spec.slo, or else a multiple of the last hour's normal)",
    )
