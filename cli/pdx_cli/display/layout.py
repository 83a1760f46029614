"""The figures of a deployment as lines: state and problems first, then latency, engines, pairs, phases. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from pdx_cli.display.legend import Sort
from pdx_cli.display.lines import BAD, BAR, count, duration, line, percent, shortened, wrapped
from pdx_cli.sources.experience import longest_part, spoken
from pdx_cli.sources.figures import FIRST_TOKEN, QUANTILES, WARM, EndpointFigures, Figures, PairFigures
from pdx_cli.usage import amount

MAX_PROBLEMS: Final = 4
"""Problems above the engines; the engines' rows show the others."""
WORST_LINES: Final = 3
"""Lines of the first problem; the others have one line each."""
WIDE: Final = 100
"""Columns from which roles are written out and the reasons have a column."""
LOST: Final = {
    "broken": "lost the engine during the answer",
    "idle": "got no more events during the answer",
    "expired": "exceeded the total time",
    "unavailable": "got no answer from any engine",
    "exhausted": "found the gateway at its own limits",
    "internal": "failed in the gateway",
}
"""Outcome (`pdx_proxy.telemetry.counters`) without a whole answer -> what happened to the requests."""
_LEAST_RATE: Final = 0.05
"""Requests per second that are not shown as 0.0."""
_ROLES: Final = ("prefill", "decode", "aggregated")


_KEYS: Final[dict[Sort, Callable[[EndpointFigures], float]]] = {
    Sort.STATE: lambda each: each.is_healthy,
    Sort.NAME: lambda _: 0,
    Sort.KV: lambda each: -(each.load.kv_usage or 0.0),
    Sort.QUEUE: lambda each: -((each.load.waiting or 0) * 10_000 + (each.load.running or 0)),
    Sort.OUTPUT: lambda each: -(each.load.output_rate or 0.0),
}


@dataclass(frozen=True, slots=True)
class Title:
    """What stands at the top of the screen."""

    name: str
    location: str
    """Where the deployment runs."""
    time: str
    """Of the last update, for people."""
    interval: float
    silent_since: str = ""
    """When the deployment first did not answer, for people; empty while it answers. The figures are then past."""


@dataclass(frozen=True, slots=True)
class Page:
    """The lines of one update."""

    head: tuple[Text, ...]
    """Stays on the screen; its last line names the columns of the engines."""
    body: tuple[Text, ...]
    """Scrolls."""


def page(title: Title, shown: Figures, width: int, sort: Sort = Sort.STATE) -> Page:
    """Lay out the figures in so many columns."""
    columns = _columns(shown, width, title.name)
    state = _silence(title, width) if title.silent_since else _state(shown, width)
    figures = (*_figures(shown, width), columns.head())
    rows = map(columns.row, ranked(shown.endpoints, sort))
    body = (*rows, *_pairs(shown, width), *_phases(shown, width), *_outcomes(shown))
    if title.silent_since:
        figures, body = (tuple(map(_past, lines)) for lines in (figures, body))
    head = (_title(title, shown, width), *state, *figures)
    for each in (*head, *body):
        each.truncate(width)
    return Page(head, body)


def _past(shown: Text) -> Text:
    """Return a line in the style of what is past; the heads of columns stay."""
    return shown if shown.style == BAR else line(shown.plain, style="dim")


def ranked(endpoints: Sequence[EndpointFigures], sort: Sort) -> list[EndpointFigures]:
    """Sort the engines; equal ones by role and name."""

    def key(each: EndpointFigures) -> tuple[float, int, str]:
        role = _ROLES.index(each.role) if each.role in _ROLES else len(_ROLES)
        return _KEYS[sort](each), 0 if sort is Sort.NAME else role, each.name

    return sorted(endpoints, key=key)


def _title(title: Title, shown: Figures, width: int) -> Text:
    """Return the first line. A narrow screen drops the interval, then the mode, then the connector."""
    left, wiring = f"{title.name} ({title.location})", f"  {shown.mode} {shown.wiring}".rstrip()
    variants = (
        (wiring, f"{title.time}  every {title.interval:g} s"),
        (wiring, title.time),
        (f"  {shown.wiring or shown.mode}", title.time),
        ("", title.time),
    )
    fitting = (each for each in variants if len(left) + len("  ".join(each)) <= width)
    middle, right = next(fitting, variants[-1])
    gap = max(2, width - len(left) - len(middle) - len(right))
    return line((left, "bold"), middle, " " * gap, (right, "dim"))


def _state(shown: Figures, width: int) -> Iterator[Text]:
    """Yield what serves, the problems, and what is proved about KV: on the first line, if it fits there."""
    status, kv = _status(shown), _kv(shown)
    fits = len(status.plain) + 2 + len(kv) <= width
    yield status.append(f"  {kv}".rstrip()) if fits else status
    yield from _problem_lines(shown, width)
    yield from () if fits else (line(f"  {part}") for part in wrapped(kv, width - 2))


def _silence(title: Title, width: int) -> Iterator[Text]:
    """Yield since when nothing answers, and how old the figures are."""
    word = "NO ANSWER"
    first, *rest = wrapped(f"{word} since {title.silent_since}. The figures are from {title.time}.", width)
    yield line((word, BAD), first.removeprefix(word))
    yield from map(line, rest)


def _status(shown: Figures) -> Text:
    serving = len(shown.endpoints) - len(shown.unhealthy)
    word, style = ("DOWN", BAD) if not shown.ready else ("OK", "green")
    faults = (shown.unhealthy, shown.unverified, shown.silent, shown.recomputes, shown.ready < shown.gateways)
    if shown.ready and any(faults):
        word, style = "DEGRADED", "yellow"
    if shown.ready and (shown.late or shown.slow):
        word, style = "SLOW", BAD
    if shown.ready and shown.experience.fails:
        word, style = "FAILING", BAD
    engines = amount(serving, "engine", len(shown.endpoints))
    return line((word, style), f"  {engines}, {amount(shown.ready, 'gateway', shown.gateways)} ready")


def _kv(shown: Figures) -> str:
    """Return what is proved at present: a result of engines that have restarted or do not serve is past."""
    good = sum(pair.is_verified for pair in shown.pairs)
    past = [pair.age for pair in shown.pairs if pair.verdict == "verified" and pair.age is not None]
    if good and not shown.recomputes:
        return f"KV verified in {amount(good, 'pair', len(shown.pairs))}"
    if shown.kv or not shown.pairs:
        return shown.kv
    return f"KV not proved now{f', last {min(past):.0f} s ago' if past else ''}"


def problems(shown: Figures) -> Iterator[str]:
    """Yield what is wrong, the worst first."""
    yield from (f"gateway {each}" for each in shown.silent)
    if not shown.ready:
        yield "no gateway is ready: clients receive 503"
    yield from _impacts(shown)
    for each in shown.unhealthy:
        if each.state != WARM:
            yield f"{each.name} is {each.state}{f': {each.reason}' if each.reason else ''}"
        else:
            yield f"{each.name} {each.silent}; the gateway still reports {each.state}"
    total = len(shown.pairs)
    broken = [pair for pair in shown.unverified if pair.verdict == "broken"]
    if broken:
        first = broken[0]
        yield f"KV does not move in {amount(len(broken), 'pair', total)}: {_pair_name(first)}: {first.detail}"
    if shown.recomputes:
        yield "no KV arrived since the last update: decode engines computed the prompts of split requests"
    stale = [pair for pair in shown.unverified if pair.stale]
    if stale:
        have, most = ("has", "") if len(stale) == 1 else ("have", "up to ")
        oldest = max(pair.age or 0 for pair in stale)
        yield f"{amount(len(stale), 'pair', total)} {have} had no result for {most}{oldest:.0f} s"
    if restarted := sum(pair.outdated and not pair.stale for pair in shown.unverified):
        yield f"{amount(restarted, 'pair', total)} {'has' if restarted == 1 else 'have'} an engine that restarted"
    for name, meaning in LOST.items():
        rate = shown.outcomes.get(name, (0.0, 0))[0]
        if rate > 0:
            yield f"{amount(max(1, round(rate * shown.seconds)), 'request')} {meaning} since the last update"
    for name, (rate, _) in shown.problems.items():
        if rate > 0 and not name.startswith("settled"):
            yield f"{name}: {rate:.1f}/s"


def _impacts(shown: Figures) -> Iterator[str]:
    """Yield what clients notice, besides an outage."""
    seen, limits = shown.experience, shown.limits
    if seen.fails:
        refused = f"; {seen.retries_refused} retries were refused" if seen.retries_refused else ""
        yield f"{seen.share}: {seen.failures} of the {seen.ended} of {seen.period}{refused}"
    if late := shown.late:
        longest = longest_part(seen, pushes="PrefillFirst" not in shown.wiring)
        most = f"; most of it is the phase {longest[0]}" if longest else ""
        most = f"; {seen.queued} requests wait in the queue" if seen.queued else most
        yield f"TTFT is {spoken(late[1])} for {late[0]}; {limits['ttft'].clause}{most}"
    for each in shown.slow:
        yield f"{each.name} needs {spoken(each.load.tpot or 0.0)} for each token; {limits['tpot'].clause}"
    if shown.cannot_split:
        yield "no prefill engine serves: every request is served whole"


def _problem_lines(shown: Figures, width: int) -> Iterator[Text]:
    found = list(problems(shown))
    for number, text in enumerate(found[:MAX_PROBLEMS]):
        first, *rest = wrapped(text, width - 2, WORST_LINES if number == 0 else 1)
        yield line(("✗ ", BAD), (first, "red"))
        yield from (line((f"  {part}", "red")) for part in rest)
    if len(found) > MAX_PROBLEMS:
        yield line((f"  and {amount(len(found) - MAX_PROBLEMS, 'more problem')}", "red"))


def _figures(shown: Figures, width: int) -> Iterator[Text]:
    yield from _requests(shown, width)
    decodes = [e.load for e in shown.endpoints if e.role != "prefill"]
    yield _latency(shown, [load.tpot for load in decodes if load.tpot is not None], width)
    # A prompt counts on the engine that computes it; a D counts those that came through the connector again.
    sources = [e.load for e in shown.endpoints if e.role == "prefill"] or decodes
    prompt = _sum(load.prompt_rate for load in sources)
    output = _sum(load.output_rate for load in decodes)
    yield line(("Tokens    ", "dim"), f"prompt {count(prompt)}/s  output {count(output)}/s")


def _requests(shown: Figures, width: int) -> Iterator[Text]:
    """Yield the rates of the outcomes and the requests in flight, on one line if they fit."""
    counted = [(name, rate) for name, (rate, total) in (*shown.outcomes.items(), *shown.bursts.items()) if total]
    now = [(name, rate) for name, rate in counted if rate >= _LEAST_RATE] or counted[:1]
    rates = "  ".join(f"{name} {_rate(shown, rate)}/s" for name, rate in now) or "none yet"
    flight = ", ".join(
        amount(number, "request") if name == "requests" else f"{number} {name}"
        for name, number in shown.in_flight.items()
        if number
    )
    whole = line(("Requests  ", "dim"), rates, ("   in flight ", "dim"), flight or "none")
    if len(whole.plain) <= width:
        yield whole
    else:
        first, *rest = (*wrapped(rates, width - 10), *wrapped(f"in flight {flight or 'none'}", width - 10))
        yield line(("Requests  ", "dim"), first)
        yield from (line(" " * 10, part) for part in rest)


def _rate(shown: Figures, rate: float) -> str:
    """Format a rate; a dash before there are two samples."""
    return f"{rate:.1f}" if shown.seconds else "-"


def _latency(shown: Figures, timed: Sequence[float], width: int) -> Text:
    """Return TTFT and TPOT; a narrow screen drops the label and the middle quantile, which the phases have too."""
    first = shown.phase(FIRST_TOKEN)
    late, slow = ("red" if each else "" for each in (shown.late, shown.slow))
    ttft = [f"p{100 * q:g} {duration(v)}" for q, v in zip(QUANTILES, first.quantiles, strict=True)] if first else ["-"]
    tpot = (("   TPOT ", "dim"), (duration(sum(timed) / len(timed)) if timed else "-", slow))
    whole = line(("Latency   ", "dim"), (f"TTFT {'  '.join(ttft)}", late), *tpot)
    if len(whole.plain) <= width:
        return whole
    return line((f"TTFT {'  '.join(dict.fromkeys((ttft[0], ttft[-1])))}", late), *tpot)


def _sum(values: Iterator[float | None] | Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) if found else None


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    text: Callable[[EndpointFigures], str]
    left: bool = False


_NUMBERS: Final = (
    _Column("RUN", 4, lambda e: count(e.load.running, digits=2)),
    _Column("WAIT", 4, lambda e: count(e.load.waiting, digits=2)),
    _Column("KV", 4, lambda e: percent(e.load.kv_usage)),
    _Column("OUT/S", 6, lambda e: count(e.load.output_rate)),
    _Column("IN/S", 6, lambda e: count(e.load.prompt_rate)),
    _Column("TPOT", 7, lambda e: duration(e.load.tpot)),
    _Column("REMOTE", 6, lambda e: percent(e.load.remote) if e.role == "decode" else "-"),
)
"""In the order in which a narrow screen keeps them."""


@dataclass(frozen=True, slots=True)
class _Columns:
    name_width: int
    shown: tuple[_Column, ...]
    prefix: str
    """Of the names of all pods, which is not repeated in the rows."""
    slow: frozenset[str] = frozenset()
    """Engines whose TPOT exceeds its limit."""

    def head(self) -> Text:
        titles = [_cell(each, each.title) for each in self.shown]
        return line("ENGINE".ljust(self.name_width), *(f" {each.plain}" for each in titles), style=BAR)

    def row(self, each: EndpointFigures) -> Text:
        name = shortened(each.name.removeprefix(self.prefix), self.name_width).ljust(self.name_width)
        styles = {"STATE": _state_style(each), "TPOT": "red" if each.name in self.slow else ""}
        cells = [_cell(column, column.text(each), styles.get(column.title, "")) for column in self.shown]
        return line(" ").join([Text(name, "" if each.is_healthy else "bold"), *cells])


def _columns(shown: Figures, width: int, name: str) -> _Columns:
    wide = width >= WIDE
    role = _Column("ROLE", 10 if wide else 4, lambda e: e.role if wide else e.role[:1].upper(), left=True)
    state = _Column("STATE", 9, lambda e: e.state if e.state != WARM or not e.silent else "Silent", left=True)
    prefix = f"{name}-" if shown.endpoints and all(e.name.startswith(f"{name}-") for e in shown.endpoints) else ""
    longest = max((len(e.name) - len(prefix) for e in shown.endpoints), default=0)
    columns, left = [role, state], width - role.width - state.width - 2
    needed = max(6, min(longest, 24, left // 2))
    for column in _NUMBERS:
        if left - column.width - 1 >= needed + 1:
            columns.append(column)
            left -= column.width + 1
    name_width = max(needed, min(longest, left - 1))
    if wide and (rest := left - name_width - 2) >= 12:
        columns.append(_Column("REASON", rest, lambda e: e.reason or e.silent, left=True))
    return _Columns(name_width, tuple(columns), prefix, frozenset(each.name for each in shown.slow))


def _cell(column: _Column, text: str, style: str = "") -> Text:
    cell = Text(text, style, overflow="ellipsis")
    cell.align("left" if column.left else "right", column.width)
    return cell


def _state_style(each: EndpointFigures) -> str:
    if each.is_healthy:
        return "green"
    return "yellow" if each.state == "Warming" else BAD


def _pair_name(pair: PairFigures) -> str:
    return f"{pair.prefill} → {pair.decode}"


def _pairs(shown: Figures, width: int) -> Iterator[Text]:
    """Yield the pairs that are not verified, and one line for the others."""
    if not shown.pairs:
        return
    good, total = [pair for pair in shown.pairs if pair.is_verified], len(shown.pairs)
    yield Text()
    if good:
        remote = min((pair.remote for pair in good if pair.remote is not None), default=None)
        least = f", remote at least {percent(remote)}" if remote is not None else ""
        age = max(pair.age or 0 for pair in good)
        text = f"{amount(len(good), 'pair', total)} verified, oldest probe {age:.0f} s ago{least}"
        yield line(("Pairs     ", "dim"), text)
    if down := sum(pair.is_down and pair.verdict != "broken" for pair in shown.pairs):
        yield line(
            f"          {amount(down, 'pair', total)} {'has' if down == 1 else 'have'} an engine that does not serve"
        )
    for pair in shown.unverified:
        yield from _unverified(pair, width)


def _unverified(pair: PairFigures, width: int) -> Iterator[Text]:
    """Yield a pair and why it is not verified, on one line if it fits."""
    past = " (before a restart)" if pair.outdated else " (stale)" if pair.stale else ""
    verdict = pair.verdict if pair.age is None else f"{pair.verdict}, {pair.age:.0f} s ago{past}"
    named = line(f"  {_pair_name(pair)}  ", (verdict, BAD if pair.verdict == "broken" else "yellow"))
    detail = f": {pair.detail}" if pair.detail else ""
    if len(named.plain) + len(detail) <= width:
        yield named.append(detail)
    else:
        yield named
        yield from (line(f"    {part}") for part in wrapped(pair.detail, width - 4))


def _phases(shown: Figures, width: int) -> Iterator[Text]:
    if not shown.phases:
        return
    column = 10 if width >= 52 else 9
    heads = "".join(f"{f'p{100 * share:g}':>{column}}" for share in QUANTILES)
    yield Text()
    yield line(f"{'PHASE':<14}{'PER S':>8}{heads}", style=BAR)
    for phase in shown.phases:
        values = "".join(f"{duration(value):>{column}}" for value in phase.quantiles)
        yield line(f"{phase.name:<14}{_rate(shown, phase.rate):>8}{values}")


def _outcomes(shown: Figures) -> Iterator[Text]:
    yield from _counts("OUTCOME", shown, {**shown.outcomes, **shown.bursts}, "no request yet")
    yield from _counts("EVENT", shown, shown.problems)


def _counts(title: str, shown: Figures, counts: Mapping[str, tuple[float, int]], none: str = "") -> tuple[Text, ...]:
    """Return a table of the counts that are not zero. If all are, it says `none`; without that, there is no table."""
    rows = [f"{name:<32}{_rate(shown, rate):>8}{total:>10}" for name, (rate, total) in counts.items() if total]
    head = line(f"{title:<32}{'PER S':>8}{'TOTAL':>10}", style=BAR)
    return (Text(), head, *map(line, rows or [none])) if rows or none else ()
