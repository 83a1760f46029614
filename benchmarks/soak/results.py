"""Results of the long runs: dated lines of JSON, and the tables of the README."""

import datetime
import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
_BEGIN: Final = "<!-- begin of {0}: written by the soak -->"
_END: Final = "<!-- end of {0} -->"

LAST: Final = "last results"
"""The table of all campaigns."""
_NOT_IN_LAST: Final = ("date", "machine", "seed", "outcomes")
_DEEDS: Final = ("kill", "leave", "add")

Line = Mapping[str, Any]
_PDX: Final = "PDX"
"""The gateway of lines that name none."""


def print_line(name: str, line: Line) -> None:
    """Print one result."""
    print(f"{name}: {json.dumps(line)}")


def record(name: str, line: Line, here: Path = HERE) -> None:
    """Add a line to `name`.jsonl with date and machine, and generate its table in the README."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    path = here / f"{name}.jsonl"
    with path.open("a") as results:
        results.write(json.dumps({"date": date, "machine": machine, **line}) + "\n")
    readme = here / "README.md"
    text = replaced(readme.read_text(), name, table(name, read(name, here)))
    readme.write_text(replaced(text, LAST, last_results(text, here)))


def read(name: str, here: Path = HERE) -> list[Line]:
    """All lines of one file, the oldest first; none without the file."""
    path = here / f"{name}.jsonl"
    return [json.loads(each) for each in path.read_text().splitlines()] if path.exists() else []


def last_results(text: str, here: Path = HERE) -> str:
    """Markdown of the last line of each file whose table the document has, in the order of the document."""
    names = sorted(
        (name for name in _COLUMNS if _BEGIN.format(name) in text), key=lambda x: text.index(_BEGIN.format(x))
    )
    rows = ["| campaign | last run | runs | last result |", "|---|---|---|---|"]
    for name in names:
        lines = [line for line in read(name, here) if _gateway(line) == _PDX]
        if not lines:
            rows.append(f"| {name} | – | 0 | |")
            continue
        cells = {title: cell(lines[-1]) for title, cell in _COLUMNS[name].items() if title not in _NOT_IN_LAST}
        result = "; ".join(f"{title}: {value}" for title, value in cells.items())
        rows.append(f"| {name} | {lines[-1]['date']} | {len(lines)} | {result} |")
    return "\n".join(rows)


def replaced(text: str, name: str, content: str) -> str:
    """A document with other content between the marks of a table; ValueError when they are missing."""
    begin, end = _BEGIN.format(name), _END.format(name)
    before, mark, rest = text.partition(begin)
    _, closing, after = rest.partition(end)
    if not mark or not closing:
        raise ValueError(f"no place for the table {name}")
    return f"{before}{begin}\n{content}\n{end}{after}"


def table(name: str, lines: list[Line]) -> str:
    """Markdown of the lines of one file."""
    columns = _COLUMNS[name]
    rows = [" | ".join(str(cell(line)) for cell in columns.values()) for line in lines]
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    none = " | ".join(("no run yet", *[""] * (len(columns) - 1)))
    return "\n".join([*head, *(f"| {row} |" for row in rows or [none])])


def _mebibytes(size: float) -> str:
    return f"{size / 2**20:.1f}"


def _outcomes(line: Line) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in line["outcomes"].items() if count)


def _of(key: str) -> Callable[[Line], Any]:
    return lambda line: line.get(key, "–")


def _gateway(line: Line) -> str:
    return str(line.get("gateway", _PDX))


def _known(line: Line) -> str:
    """Whether the gateway knows `max_num_seqs`; only PDX can."""
    if _gateway(line) != _PDX:
        return "–"
    return "known" if line["known"] else "not known"


_COLUMNS: Final[Mapping[str, Mapping[str, Callable[[Line], Any]]]] = {
    "blocked": {
        "date": _of("date"),
        "order": _of("order"),
        "blocked": lambda line: f"{line['where']}, {line['when']}",
        "minutes": lambda line: f"{line['length'] / 60:.3g}" if "length" in line else "–",
        "requests/s": _of("rate"),
        "outcomes": lambda line: ", ".join(f"{name} {count:,}" for name, count in line["saw"].items()),
        "first proof": lambda line: f"{line['proved']:.1f} s",
        "longest request until 10 s after the proof": lambda line: f"{line['early']:.1f} s",
        "longest later request": lambda line: f"{line['late']:.1f} s",
        "from the repair until requests are split": lambda line: f"{line['returned']:.1f} s",
        "machine": _of("machine"),
    },
    "faults": {
        "date": _of("date"),
        "order": _of("order"),
        "workers": _of("workers"),
        "minutes": lambda line: f"{line['seconds'] / 60:.3g}",
        "seed": _of("seed"),
        "clients": lambda line: f"{line['requests']:,}",
        "faults struck": lambda line: f"{line['faults']:,}",
        "engines killed, deleted, added": lambda line: ", ".join(f"{line['done'].get(x, 0):,}" for x in _DEEDS),
        "outcomes": _outcomes,
        "leases that expired, of finished prefills": lambda line: (
            f"{line['expired']:,} of {line['prefills_finished']:,}"
        ),
        "MiB early, at the end": lambda line: ", ".join(map(_mebibytes, line["memory"].values())),
        "machine": _of("machine"),
    },
    "hang-ups": {
        "date": _of("date"),
        "order": _of("order"),
        "clients that left": lambda line: f"{line['clients']['left']:,}",
        "clients answered": lambda line: f"{line['clients']['answered']:,}",
        "prefills stopped": _of("stopped"),
        "leases that expired": _of("leasesExpired"),
        "machine": _of("machine"),
    },
    "bodies": {
        "date": _of("date"),
        "bodies": lambda line: f"{line['atOnce']} of {line['mib']:g} MiB: {line['case']}",
        "answers": lambda line: ", ".join(map(str, sorted(set(line["statuses"])))),
        "longest delay of `/health`": lambda line: f"{line['latestSeconds'] * 1000:.0f} ms",
        "added memory / size of the bodies": _of("memoryOfBodies"),
        "machine": _of("machine"),
    },
    "capacity": {
        "date": _of("date"),
        "order": _of("order"),
        "workers": _of("workers"),
        "minutes": lambda line: f"{line['seconds'] / 60:.3g}",
        "capacity, tokens/s": lambda line: f"{line['capacity']:.0f}",
        "goodput / capacity": lambda line: f"{line['goodput'] / line['capacity']:.1%}",
        "shed": lambda line: f"{line['saw'].get('shed', 0):,}",
        "served, of clients that came back": lambda line: (
            f"{line['returned'].get('text', 0):,} of {sum(line['returned'].values()):,}"
        ),
        "first event before, after the overload": lambda line: ", ".join(
            f"{x * 1000:.0f} ms" for x in line["firstEvents"]
        ),
        "ejections, KV lost": lambda line: f"{line['ejections']}, {line['decodeLost']}",
        "machine": _of("machine"),
    },
    "impatience": {
        "date": _of("date"),
        "gateway": _gateway,
        "order": _of("order"),
        "minutes per load": lambda line: f"{line['seconds'] / 60:.3g}",
        "P's can serve, requests/s": lambda line: f"{line['capacity']:g}",
        "answers/s at each load": lambda line: ", ".join(f"{load} ×: {x:.2f}" for load, x in line["answers"].items()),
        "patient client: answers, longest request": lambda line: f"{line['patient'][0]}, {line['patient'][1]:.1f} s",
        "most legs at one P, one D": lambda line: ", ".join(map(str, line["legs"].values())),
        "machine": _of("machine"),
    },
    "realtime": {
        "date": _of("date"),
        "seed": _of("seed"),
        "requests": _of("requests"),
        "simulated TTFT p50 / p99, s": lambda line: " / ".join(f"{each:.3f}" for each in line["simulated"]),
        "TTFT p50 / p99 in real time, s": lambda line: " / ".join(f"{each:.3f}" for each in line["measured"]),
        "difference of p50 / p99": lambda line: " / ".join(f"{100 * each:.1f} %" for each in line["apart"]),
        "machine": _of("machine"),
    },
    "sizes": {
        "date": _of("date"),
        "order": _of("order"),
        "gateways": _of("gateways"),
        "minutes": lambda line: f"{line['seconds'] / 60:.3g}",
        "each D: running on average of its capacity, longest queue": lambda line: "; ".join(
            f"{each['running']:.1f} of {each['canRun']:.1f}, {each['queued']}" for each in line["engines"]
        ),
        "machine": _of("machine"),
    },
    "crowd": {
        "date": _of("date"),
        "slow clients of each kind": _of("peers"),
        "minutes of each": lambda line: f"{line['seconds'] / 60:.3g}",
        "p99 of normal clients, by the kind of slow clients": lambda line: "; ".join(
            f"{kind}: {x * 1000:.1f} ms" for kind, x in line["late"].items()
        ),
        "machine": _of("machine"),
    },
    "neighbours": {
        "date": _of("date"),
        "order": _of("order"),
        "minutes": lambda line: f"{line['seconds'] / 60:.3g}",
        "connections of the first client": _of("connections"),
        "answers to the first, the second client": lambda line: ", ".join(f"{x:,}" for x in line["answers"]),
        "service time": lambda line: f"{line['service']:.2f} s",
        "p99 of the second client": lambda line: f"{line['p99']:.2f} s",
        "machine": _of("machine"),
    },
    "returns": {
        "date": _of("date"),
        "order": _of("order"),
        "streams": lambda line: f"{line['streams']} of {line['answer']:g} s",
        "minimum": lambda line: f"{line['minimum']:.0f} s",
        "all served after": lambda line: f"{line['seconds']:.1f} s",
        "refusals; longest `Retry-After`": lambda line: f"{line['sheds']}; {line['longest']} s",
        "machine": _of("machine"),
    },
    "bursts": {
        "date": _of("date"),
        "gateway": _gateway,
        "order": _of("order"),
        "streams": _of("streams"),
        "`max_num_seqs`": _known,
        "TTFT p90 of the first, the third burst": lambda line: (
            f"{statistics.median(line['first']):.2f} s, {statistics.median(line['third']):.2f} s"
        ),
        "first / third, median": lambda line: f"{line['ratio']:.2f}",
        "machine": _of("machine"),
    },
    "hostile-engines": {
        "date": _of("date"),
        "order": _of("order"),
        "workers": _of("workers"),
        "minutes": lambda line: f"{line['seconds'] / 60:.3g}",
        "seed": _of("seed"),
        "hostile answers": lambda line: f"{line['hostile']:,}",
        "requests only at healthy engines": lambda line: f"{sum(line['saw'].values()):,}",
        "right answers, of all other requests": lambda line: (
            f"{line['touched'].get('right', 0):,} of {sum(line['touched'].values()):,}"
        ),
        "MiB idle, maximum": lambda line: ", ".join(_mebibytes(line["memory"][x]) for x in ("idle", "most")),
        "machine": _of("machine"),
    },
    "hostile-clients": {
        "date": _of("date"),
        "order": _of("order"),
        "workers": _of("workers"),
        "minutes": lambda line: f"{line['seconds'] / 60:.3g}",
        "seed": _of("seed"),
        "hostile connections": lambda line: f"{line['hostile']:,}",
        "ordinary requests": lambda line: f"{sum(line['saw'].values()):,}",
        "TTFT p99 next to hostile, honest clients": lambda line: ", ".join(
            f"{line['late'][x] * 1000:.0f} ms" for x in ("hostile", "honest")
        ),
        "MiB idle, maximum": lambda line: ", ".join(_mebibytes(line["memory"][x]) for x in ("idle", "most")),
        "machine": _of("machine"),
    },
    "kills": {
        "date": _of("date"),
        "leaders killed": _of("kills"),
        "seed": _of("seed"),
        "writes of a change before its kill": lambda line: f"{min(line['steps'])} to {max(line['steps'])}",
        "writes": lambda line: f"{line['writes']:,}",
        "minutes": lambda line: f"{line['seconds'] / 60:.3g}",
        "machine": _of("machine"),
    },
    "scopes": {
        "date": _of("date"),
        "minutes": lambda line: f"{line['seconds'] / 60:.3g}",
        "seed": _of("seed"),
        "objects of the first, of the second": lambda line: ", ".join(
            f"{line['objects'][x]:,}" for x in ("one", "two")
        ),
        "changes": lambda line: f"{line['done'].get('change', 0):,}",
        "operators restarted": lambda line: line["done"].get("restart", 0),
        "writes": lambda line: f"{line['writes']:,}",
        "machine": _of("machine"),
    },
    "tenant": {
        "date": _of("date"),
        "objects": _of("objects"),
        "seed": _of("seed"),
        "the API server's answers": lambda line: ", ".join(f"{each} {n:,}" for each, n in line["answers"].items()),
        "hostile answers polled": lambda line: f"{line['polls']:,}",
        "operator's memory at most: ordinary, hostile": lambda line: ", ".join(
            f"{mib:.0f} MiB" for mib in line["memory"].values()
        ),
        "machine": _of("machine"),
    },
    "delays": {
        "date": _of("date"),
        "rounds": _of("rounds"),
        "objects": _of("objects"),
        "seconds until Ready, median: usual, objects just created, while they change": lambda line: ", ".join(
            f"{statistics.median(line[name]):.2f}" if name in line else "–" for name in ("usual", "created", "changing")
        ),
        "times the usual": lambda line: ", ".join(
            f"{statistics.median(line[name]) / statistics.median(line['usual']):.2f}" if name in line else "–"
            for name in ("created", "changing")
        ),
        "seconds of the first object after the creation": lambda line: (
            f"{statistics.median(line['first']):.2f}" if "first" in line else "–"
        ),
        "machine": _of("machine"),
    },
    "upgrade": {
        "date": _of("date"),
        "engines": _of("engines"),
        "gateways": _of("gateways"),
        "requests served": lambda line: f"{line['served']:,}",
        "lost": _of("lost"),
        "machine": _of("machine"),
    },
    "overload": {
        "date": _of("date"),
        "order": _of("order"),
        "minutes": lambda line: f"{line['seconds'] / 60:.3g}",
        "peak, answers/s": lambda line: f"{line['peak']:.0f}",
        "offered, requests/s": lambda line: f"{line['offered']:.0f}",
        "goodput / peak": lambda line: f"{line['goodput'] / line['peak']:.0%}",
        "shed": lambda line: f"{line['shed']:,}",
        "time to shed, p50, p99": lambda line: ", ".join(f"{x * 1000:.0f} ms" for x in line["shedSeconds"]),
        "MiB before, maximum": lambda line: ", ".join(map(_mebibytes, line["memory"].values())),
        "machine": _of("machine"),
    },
}
