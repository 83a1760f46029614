"""The rows of the table: their values from the runs, and their gates and goals."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Runs = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""One round: gateway -> load -> result."""
Take = Callable[[Runs, str], float | None]
"""A value of a gateway in a round; None when there is none."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    key: str
    title: str
    unit: str
    take: Take
    more: bool = False
    """Whether more is better."""
    gate: float | None = None
    """Ratio to the best of `against` that must be reached; the limit itself for a row that is `absolute`."""
    goal: float | None = None
    subject: str = "pdx"
    """The gateway that the row is about."""
    against: str = "rust"
    """"rust": the best Rust gateway; "one": pdx with one worker; "limit": nothing, gate and goal are values."""
    goal_beats: str | None = None
    """A gateway that the goal must reach too."""
    digits: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """A gateway's values in the rounds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Largest minus smallest, as a share of the median."""
        return (max(self.values) - min(self.values)) / abs(self.median) if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a row."""

    row: Row
    cells: Mapping[str, Cell]
    subject: str
    reference: str | None
    """The gateway that the ratio is to."""
    ratio: float | None
    gate: bool | None
    goal: bool | None


def _result(runs: Runs, gateway: str, load: str) -> Mapping[str, Any] | None:
    result = runs.get(gateway, {}).get(load)
    return None if result is None or "failed" in result or not result["requests"] else result


def _rate(load: str, count: str) -> Take:
    def take(runs: Runs, gateway: str) -> float | None:
        result = _result(runs, gateway, load)
        return result[count] / result["seconds"] if result else None

    return take


def _cpu(load: str) -> Take:
    def take(runs: Runs, gateway: str) -> float | None:
        result = _result(runs, gateway, load)
        return result["cpu_ms"] if result and gateway != "direct" else None

    return take


def _added(load: str, histogram: str, share: str) -> Take:
    """Milliseconds more than the same load on the engines alone in the same round; for the engines: all of them."""

    def take(runs: Runs, gateway: str) -> float | None:
        result, direct = _result(runs, gateway, load), _result(runs, "direct", load)
        if not result or not direct:
            return None
        base = 0.0 if gateway == "direct" else direct[histogram][share]
        return float(result[histogram][share] - base) / 1000

    return take


ROWS: Final = (
    Row(
        "rps-settled-8",
        "req/s, 8 connections, default limits, settled",
        "",
        _rate("settled-8", "requests"),
        True,
        subject="pdx-defaults",
    ),
    Row(
        "rps-settled-64",
        "req/s, 64 connections, default limits, settled",
        "",
        _rate("settled-64", "requests"),
        True,
        1.5,
        1.7,
        subject="pdx-defaults",
    ),
    Row(
        "cpu-settled-8",
        "CPU per request, 8 connections, default limits, settled",
        "ms",
        _cpu("settled-8"),
        subject="pdx-defaults",
        digits=3,
    ),
    Row(
        "cpu-settled-64",
        "CPU per request, 64 connections, default limits, settled",
        "ms",
        _cpu("settled-64"),
        False,
        0.65,
        0.6,
        subject="pdx-defaults",
        digits=3,
    ),
    Row("rps", "req/s, 64 connections, engines that report nothing", "", _rate("plain", "requests"), True, 1.5, 2.0),
    Row("cpu", "CPU per request, the same load", "ms", _cpu("plain"), False, 0.67, 0.5, digits=3),
    Row(
        "chunks",
        "streamed chunks/s, 64 connections, 4 per write",
        "",
        _rate("stream", "events"),
        True,
        1.4,
        2.0,
        goal_beats="nginx",
    ),
    Row(
        "chunks-single",
        "the same, each chunk written alone (near the engines' ceiling)",
        "",
        _rate("stream-single", "events"),
        True,
    ),
    *(
        Row(
            f"ttft-{streams}-{share}",
            f"added time to first token, {share}, {streams} streams",
            "ms",
            _added(f"paced-{streams}", "first", share),
            gate=1.0,
            goal=0.5,
            digits=2,
        )
        for streams in (64, 256)
        for share in ("p50", "p99")
    ),
    Row(
        "gap",
        "added gap between tokens, p99, 256 streams",
        "ms",
        _added("paced-256", "gap", "p99"),
        False,
        1.0,
        0.5,
        digits=2,
    ),
    Row("rps-100k", "req/s, 100 kB prompts", "", _rate("prompt-100k", "requests"), True, 1.1, 1.5),
    Row("rps-1m", "req/s, 1 MB prompts", "", _rate("prompt-1m", "requests"), True, 1.1, 1.5),
    Row(
        "cpu-2",
        "CPU per request, two workers",
        "ms",
        _cpu("plain"),
        False,
        1.1,
        subject="pdx-2",
        against="one",
        digits=3,
    ),
    Row(
        "open-2000",
        "2,000 open streams, 10 tokens/s: added gap p99",
        "ms",
        _added("open-2000", "gap", "p99"),
        False,
        50,
        against="limit",
        digits=1,
    ),
    Row(
        "open-5000",
        "5,000 open streams, 10 tokens/s: added gap p99",
        "ms",
        _added("open-5000", "gap", "p99"),
        False,
        goal=50,
        against="limit",
        digits=1,
    ),
)


def judge(rounds: Sequence[Runs], rust: Sequence[str]) -> list[Verdict]:
    """Every row of a run, with its gate and goal."""
    return [_judge(row, rounds, rust) for row in ROWS]


def _judge(row: Row, rounds: Sequence[Runs], rust: Sequence[str]) -> Verdict:
    names = dict.fromkeys(name for runs in rounds for name in runs)
    cells = {}
    for name in names:
        values = tuple(value for runs in rounds if (value := row.take(runs, name)) is not None)
        if values and (name != "pdx-2" or row.against == "one"):
            cells[name] = Cell(values)
    subject = row.subject
    own = cells.get(subject)
    if own is None:
        return Verdict(row, cells, subject, None, None, None, None)
    if row.against == "limit":
        return Verdict(row, cells, subject, None, None, _within(own.median, row.gate), _within(own.median, row.goal))
    reference = "pdx" if row.against == "one" else _best(cells, rust, more=row.more)
    if reference is None or reference not in cells:
        return Verdict(row, cells, subject, None, None, None, None)
    base = cells[reference].median
    ratio = own.median / base if base > 0 else None
    goal = _reaches(row, own.median, base, row.goal)
    if goal and row.goal_beats in cells:
        goal = own.median >= cells[row.goal_beats].median
    return Verdict(row, cells, subject, reference, ratio, _reaches(row, own.median, base, row.gate), goal)


def _best(cells: Mapping[str, Cell], names: Sequence[str], *, more: bool) -> str | None:
    measured = [name for name in names if name in cells]
    return (max if more else min)(measured, key=lambda name: cells[name].median) if measured else None


def _reaches(row: Row, value: float, base: float, factor: float | None) -> bool | None:
    if factor is None:
        return None
    return value >= factor * base if row.more else value <= factor * base


def _within(value: float, limit: float | None) -> bool | None:
    return None if limit is None else value <= limit
