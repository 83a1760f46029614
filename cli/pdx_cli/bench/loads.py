"""The workload and the SLO of a run, from its flags and the object. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pdx_cli.bench.analysis.steps import Slo
from pdx_cli.bench.load.traces import TraceError, read
from pdx_cli.bench.load.workload import Fixed, Traced, Workload
from pdx_cli.errors import InputError

DEFAULT_SLO: Final = Slo(1.0, 0.05)
"""If neither flags nor the object name one."""
DEFAULT_LENGTHS: Final = (1000, 200)
"""Tokens of prompts and answers, if nothing names any."""


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
