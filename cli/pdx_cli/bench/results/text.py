"""The result of a run as lines for a terminal: one row for each arm, what moved, and the verdict. Pure."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from pdx_cli.bench.analysis.arms import ArmResult
from pdx_cli.bench.analysis.counters import moved_share
from pdx_cli.bench.analysis.phases import HAND_OFF, TO_FIRST_TOKEN, Phase, adds_up
from pdx_cli.bench.analysis.steps import StepResult
from pdx_cli.bench.results.document import Run
from pdx_cli.usage import amount

PARTS: Final = {
    "queue": (Phase.GATEWAY_QUEUE, Phase.QUEUE),
    "P": (Phase.PREFILL,),
    "hand-off": HAND_OFF,
    "D": (Phase.FIRST_STEP,),
    "gateway": (Phase.GATEWAY,),
    "outside": (Phase.OUTSIDE,),
}
"""Column -> the phases that it adds."""
NO_PHASES: Final = "Only TTFT and TPOT were measured, no phases: the server is no PDX, or its metrics are not reached."
_DASH: Final = "-"


def lines(run: Run) -> Iterator[str]:
    """Yield the lines."""
    yield f"{run.name}: {run.load}; SLO: {run.slo}; {run.step_seconds:g} s a step, {amount(run.repeats, 'repeat')}"
    if run.partial:
        yield "Interrupted: these are the results so far."
    yield ""
    yield from _table([_head(run), *(_row(each, run) for each in run.results)])
    if not run.has_phases:
        yield NO_PHASES
    for result in run.results:
        yield from moved(result)
    for result in run.results if run.has_phases else ():
        if result.best is not None and result.best.phases and not adds_up(result.best.phases):
            outside = result.best.phases.get(Phase.OUTSIDE, 0.0)
            yield f"{result.arm.name}: {1000 * outside:.1f} ms of TTFT are outside of what the gateway measures."
    yield ""
    yield from (f"Verdict: {text}" if number == 0 else text for number, text in enumerate(run.verdict.sentences))


def moved(result: ArmResult) -> Iterator[str]:
    """Yield what moved, was found in caches, was computed again or expired."""
    share = moved_share(result.decode) if result.arm.split else None
    counts = [result.prefill, result.decode]
    prompts = result.prefill.prompt_tokens
    hits = f"prefix hits: {100 * result.prefill.cached_tokens / prompts:.0f} %" if prompts else ""
    if share is None:
        if hits:
            yield f"{result.arm.name}: {hits} of {_amount(prompts)} prompt tokens."
        return
    parts = [f"KV moved: {100 * share:.0f} % of {_amount(result.decode.prompt_tokens)} prompt tokens"]
    transfer = result.decode.transfer
    if transfer.total > 0 and result.decode.transfer_bytes:
        parts.append(f"{result.decode.transfer_bytes / transfer.total / 1e9:.2g} GB/s a transfer")
    parts.append(f"{_amount(result.decode.computed_tokens)} tokens computed by decode engines")
    parts.append(f"{sum(each.expired for each in counts):.0f} expired")
    if failed := max(each.failed_transfers for each in counts):  # one of Mooncake's counts on P and on D
        parts.append(f"{failed:.0f} transfers failed")
    if hits:
        parts.append(hits)
    yield f"{result.arm.name}: {', '.join(parts)}."


def measured(step: StepResult) -> str:
    """Return what a step has shown, on one line."""
    ended = ", ended early" if step.stopped else ""
    invalid = "" if step.is_valid else "; INVALID: the load generator was the limit"
    failed = f", {sum(step.failures.values())} failed" if step.failures else ""
    return (
        f"{step.rate:.3g} req/s: {100 * step.share:.1f} % of {step.count} good{failed}, "
        f"TTFT {seconds(step.ttft.p50)} / {seconds(step.ttft.p99)}, "
        f"TPOT {seconds(step.tpot.p50)} / {seconds(step.tpot.p99)}{ended}{invalid}"
    )


def seconds(value: float) -> str:
    """Format a time."""
    if math.isnan(value):
        return _DASH
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.0f} ms" if value >= 0.01 else f"{1000 * value:.1f} ms"


def shares(step: StepResult) -> dict[str, float]:
    """Return the share of TTFT in each column; empty without phases."""
    whole = sum(step.phases.get(phase, 0.0) for phase in TO_FIRST_TOKEN)
    if not step.phases or whole <= 0:
        return {}
    return {name: sum(step.phases.get(phase, 0.0) for phase in phases) / whole for name, phases in PARTS.items()}


def tokens_per_second(step: StepResult) -> float:
    """Output tokens per second."""
    return step.output_tokens / step.seconds if step.seconds else 0.0


def _head(run: Run) -> list[str]:
    rate = "tok/s/device" if run.devices else "tok/s"
    found = ["", "good req/s", "TTFT p50 / p99", "TPOT p50 / p99", rate]
    return [*found, *(["of TTFT: queue", *list(PARTS)[1:]] if run.has_phases else []), "limit"]


def _row(result: ArmResult, run: Run) -> list[str]:
    step = result.best
    name = f"{result.arm.name}{' (yours)' if result.arm.yours else ''}"
    if not result.goodputs:
        return [name, "not measured"]
    goodput = f"{result.goodput:.3g} ± {result.spread / 2:.2g}{'' if result.is_valid else ' INVALID'}"
    if step is None:
        return [name, goodput, *[_DASH] * (9 if run.has_phases else 3), str(result.bottleneck)]
    parts = shares(step)
    columns = [f"{100 * parts[part]:.0f} %" if parts else _DASH for part in PARTS] if run.has_phases else []
    return [
        name,
        goodput,
        f"{seconds(step.ttft.p50)} / {seconds(step.ttft.p99)}",
        f"{seconds(step.tpot.p50)} / {seconds(step.tpot.p99)}",
        f"{tokens_per_second(step) / (run.devices or 1):.0f}",
        *columns,
        str(result.bottleneck),
    ]


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    columns = max(map(len, rows))
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(columns)]
    for row in rows:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        yield "   ".join(cells).rstrip()


def _amount(count: float) -> str:
    return f"{count / 1e6:.2f}M" if count >= 1e6 else f"{count / 1e3:.0f}k" if count >= 1e4 else f"{count:.0f}"
