"""The report: one HTML page with its styles and plots. It loads nothing, and is light or dark like the reader's system.

Pure: a run in, text out.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from pdx_cli.bench.analysis.arms import ArmResult
from pdx_cli.bench.analysis.phases import TO_FIRST_TOKEN
from pdx_cli.bench.analysis.search import GOAL
from pdx_cli.bench.analysis.verdict import Kind
from pdx_cli.bench.results.document import Run
from pdx_cli.bench.results.plots import Axis, Line, bars, cumulative, legend, plot, thinned
from pdx_cli.bench.results.text import NO_PHASES, PARTS, moved, seconds, shares, tokens_per_second
from pdx_cli.usage import amount

_VARIABLES: Final = """
:root { color-scheme: light dark; --page: #f6f6f4; --card: #ffffff; --ink: #1d1d1b; --soft: #62625c; --line: #deded8;
  --rule: #8a8a82; --good: #0a7d4d; --bad: #b3372f; --even: #8a6200;
  --c0: #2a6fdb; --c1: #d9661f; --c2: #1f8a5b; --c3: #8a52c7; --c4: #b58900; --c5: #c2427e; }
@media (prefers-color-scheme: dark) { :root { --page: #161615; --card: #20201e; --ink: #ececE6; --soft: #a3a39b;
  --line: #3a3a36; --rule: #85857c; --good: #4cc38a; --bad: #ff8a80; --even: #e0b34a;
  --c0: #6ea8ff; --c1: #ff9a5c; --c2: #4cc38a; --c3: #b98cf0; --c4: #e0b34a; --c5: #f283b6; } }
"""
_PLOTS: Final = """
.grid { stroke: var(--line); stroke-width: 1; }
.axis { stroke: var(--rule); } .rule { stroke: var(--rule); stroke-dasharray: 5 4; }
.tick, .label, .name { fill: var(--soft); font-size: 12px; } .name { text-anchor: end; fill: var(--ink); }
.mid { text-anchor: middle; } .end { text-anchor: end; }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; } .dashed { stroke-dasharray: 6 4; }
.area { opacity: 0.16; stroke: none; } .mark { stroke: var(--card); stroke-width: 1.5; }
"""
_STYLE: Final = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font-variant-numeric: tabular-nums;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1360px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 24px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 15px; margin: 0 0 10px; }
p { margin: 0 0 8px; max-width: 76ch; } .soft { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin: 16px 0; }
.grid2 { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.grid2 .card { margin: 0; } .verdict { border-left: 5px solid var(--even); }
.verdict.pays { border-left-color: var(--good); } .verdict.not { border-left-color: var(--bad); }
.verdict .first { font-size: 19px; font-weight: 600; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: right; padding: 7px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 500; }
tr:last-child td { border-bottom: 0; } tr.best td { font-weight: 600; }
svg { width: 100%; height: auto; display: block; }
.legend { list-style: none; margin: 0 0 8px; padding: 0; display: flex; flex-wrap: wrap; gap: 4px 18px;
  font-size: 13px; }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 7px; vertical-align: -1px; }
"""
_COLOURS: Final = "".join(
    f".line.s{n} {{ stroke: var(--c{n}); }} .area.s{n}, .mark.s{n}, .fill.s{n} {{ fill: var(--c{n}); }} "
    f".key.s{n} {{ background: var(--c{n}); }}\n"
    for n in range(6)
)
PLOT_STYLE: Final = _VARIABLES + _PLOTS + _COLOURS
"""What plots need, on the page and elsewhere."""
_CLASSES: Final = {Kind.PAYS: "pays", Kind.DOES_NOT_PAY: "not"}


def page(run: Run) -> str:
    """Return the report."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>pdx bench: {escape(run.name)}</title>",
        f"<style>{_STYLE}{PLOT_STYLE}</style></head><body><main>",
        *_head(run),
        *_verdict(run),
        _table(run),
        '<div class="grid2">',
        *_plots(run),
        "</div>",
        *_timelines(run),
        f'<p class="soft">PDX {escape(run.version)}, {escape(run.date)}, seed {run.seed}.</p>',
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _head(run: Run) -> Iterator[str]:
    yield f"<h1>{escape(run.name)}</h1>"
    devices = f", {run.devices} devices for each arm" if run.devices else ""
    yield (
        f'<p class="soft">{escape(run.load)} with model {escape(run.model)}{devices}. A request is good within '
        f"{run.slo}. Steps of {run.step_seconds:g} s after {run.warm_up:g} s of warm-up, "
        f"{amount(run.repeats, 'repeat')}.</p>"
    )


def _verdict(run: Run) -> Iterator[str]:
    verdict = run.verdict
    yield f'<section class="card verdict {_CLASSES.get(verdict.kind, "")}">'
    if run.partial:
        yield '<p class="soft">The run was interrupted: these are the results so far.</p>'
    for number, text in enumerate(verdict.sentences):
        yield f"<p{' class=first' if number == 0 else ''}>{escape(text)}</p>"
    for result in run.results:
        yield from (f'<p class="soft">{escape(line)}</p>' for line in moved(result))
    if not run.has_phases:
        yield f'<p class="soft">{NO_PHASES}</p>'
    yield "</section>"


def _table(run: Run) -> str:
    rate = "tok/s per device" if run.devices else "tok/s"
    head = ["arm", "good req/s", "TTFT p50", "p99", "TPOT p50", "p99", rate]
    head += [f"TTFT: {name}" if name == "queue" else name for name in PARTS] if run.has_phases else []
    rows = "".join(_row(each, run) for each in run.results)
    cells = "".join(f"<th>{escape(each)}</th>" for each in [*head, "limit"])
    return f'<section class="card wide"><table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></section>'


def _row(result: ArmResult, run: Run) -> str:
    step = result.best
    cells = [f"{result.arm.name}{' (yours)' if result.arm.yours else ''}"]
    cells.append(f"{result.goodput:.3g} ± {result.spread / 2:.2g}" if result.goodputs else "not measured")
    columns = 5 + (len(PARTS) if run.has_phases else 0)
    if step is None:
        cells += ["-"] * columns
    else:
        times = (step.ttft.p50, step.ttft.p99, step.tpot.p50, step.tpot.p99)
        cells += [*map(seconds, times), f"{tokens_per_second(step) / (run.devices or 1):.0f}"]
        parts = shares(step)
        if run.has_phases:
            cells += [f"{100 * parts[name]:.0f} %" if parts else "-" for name in PARTS]
    cells.append(str(result.bottleneck) if result.is_valid else "invalid")
    best = ' class="best"' if result.arm.name == run.verdict.winner else ""
    return f"<tr{best}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _plots(run: Run) -> Iterator[str]:
    results = [each for each in run.results if each.steps]
    names = [each.arm.name for each in results]
    yield _card("Good requests over rate", legend(names) + goodput(results))
    for title, label, values, limit in (
        ("Time to first token", "TTFT, s", [[s.ttft for s in each.samples] for each in results], run.slo.ttft),
        ("Time per output token", "TPOT, s", [[s.tpot for s in each.samples] for each in results], run.slo.tpot),
    ):
        yield _card(f"{title} at the goodput", legend(names) + _distribution(title, label, names, values, limit))
    if rows := [(each.arm.name, phases(each)) for each in results if phases(each)]:
        parts = list(dict.fromkeys(name for _, each in rows for name, _ in each))
        yield _card("Where the time to the first token went (mean)", legend(parts) + bars(rows, seconds))


def goodput(results: Sequence[ArmResult]) -> str:
    """Plot the share of good requests over the rate."""
    rates = [step.rate for each in results for step in each.steps if step.rate > 0]
    low, high = (min(rates), max(rates)) if rates else (0.1, 1.0)
    x = Axis("requests per second", low / 1.05, high * 1.05, log=high > 3 * low, form=lambda value: f"{value:.3g}")
    y = Axis("share of good requests", 0.0, 1.0, form=lambda value: f"{100 * value:.0f} %")
    lines = [
        Line(each.arm.name, tuple(sorted((step.rate, step.share) for step in each.steps)), marks=True)
        for each in results
    ]
    return plot("Good requests over rate", x, y, lines, [("y", "90 %", GOAL)])


def _distribution(title: str, label: str, names: Sequence[str], values: Sequence[Sequence[float]], limit: float) -> str:
    finite = sorted(value for each in values for value in each if math.isfinite(value) and value > 0)
    low = min(finite[len(finite) // 200], limit / 2) if finite else limit / 10
    high = max(finite[-1 - len(finite) // 200], limit * 1.5) if finite else limit * 2
    x = Axis(label, low, high, log=True, form=lambda value: f"{value:g}")
    y = Axis("share of requests", 0.0, 1.0, form=lambda value: f"{100 * value:.0f} %")
    lines = [Line(name, cumulative(each)) for name, each in zip(names, values, strict=True)]
    return plot(title, x, y, lines, [("x", "SLO", limit), ("y", "90 %", GOAL)])


def phases(result: ArmResult) -> list[tuple[str, float]]:
    """Return the parts of the time to the first token at the goodput, in seconds; empty if they were not measured."""
    step = result.best
    if step is None or not step.phases:
        return []
    names = {phase: name for name, phases in PARTS.items() for phase in phases}
    found: dict[str, float] = {}
    for phase in TO_FIRST_TOKEN:
        found[names[phase]] = found.get(names[phase], 0.0) + max(0.0, step.phases.get(phase, 0.0))
    return list(found.items())


def _timelines(run: Run) -> Iterator[str]:
    for result in run.results:
        if not result.timeline:
            continue
        engines = list(result.timeline)
        points = [point for each in result.timeline.values() for point in each]
        x = Axis("seconds", 0.0, max(at for at, _, _ in points) or 1.0)
        yield f'<section class="card"><h2>{escape(result.arm.name)}: the engines over time</h2>{legend(engines)}'
        yield '<div class="grid2">'
        for title, index in (("requests that run", 1), ("requests that wait", 2)):
            y = Axis(title, 0.0, max(1.0, *(point[index] for point in points)))
            lines = [
                Line(name, thinned([(point[0], point[index]) for point in each]), area=len(engines) <= 2)
                for name, each in result.timeline.items()
            ]
            yield f"<div>{plot(f'{result.arm.name}: {title}', x, y, lines)}</div>"
        yield "</div></section>"


def _card(title: str, body: str) -> str:
    return f'<section class="card"><h2>{escape(title)}</h2>{body}</section>'
