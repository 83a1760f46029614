"""Read the tables of the folder `tables`. The head of engines.txt describes their columns.

A row of engines.txt and mooncake.txt is one line. A row of another table is a line and its texts, each with its name:
what `fails`, what the `client` sees (if the column has no word for it), what `engines` see, `counters`, the `policy`,
and the `test`. A line of `#` is a comment.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome
from tests.failure_matrix import words
from tests.failure_matrix.faults import ENDS, PLACES, Fault, Place, strike, text
from tests.failure_matrix.row import Row

TABLES: Final = Path(__file__).parent / "tables"
_SHARED: Final = ("orders", "stream", "client", "outcomes", "retries", "settled")
ENGINE_COLUMNS: Final = ("id", "ends", *_SHARED, "legs", "kept", "with")
SCENARIO_COLUMNS: Final = ("id", "phase", *_SHARED)
_INDENT: Final = "    "
_TEXTS: Final = ("fails", "client", "engines", "counters", "policy", "test")


def engine_rows(path: Path, *, prefix: str = "") -> Iterator[Row]:
    """The rows that test_failures.py runs: one in each line. Their ids get the prefix."""
    for number, line in _lines(path, ENGINE_COLUMNS):
        with _at(path, number):
            yield _engine_row(_cells(line, ENGINE_COLUMNS), prefix)


def scenario_rows(path: Path) -> Iterator[Row]:
    """The rows with tests of their own: the texts of each are in the indented lines below its line."""
    entries: list[tuple[int, str, list[str]]] = []
    for number, line in _lines(path, SCENARIO_COLUMNS):
        if not line.startswith(_INDENT):
            entries.append((number, line, []))
        elif entries:
            entries[-1][2].append(line)
        else:
            raise ValueError(f"{path.name}:{number}: there is no row above")
    for number, line, texts in entries:
        with _at(path, number):
            yield _scenario_row(_cells(line, SCENARIO_COLUMNS), _texts(texts))


def _lines(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """The lines below the head, with their numbers, without comments and empty lines."""
    written = [
        (number, line)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]
    (number, head), *rest = written
    with _at(path, number):
        if tuple(head.split()) != columns:
            raise ValueError(f"the head is not {' '.join(columns)!r}")
    yield from rest


@contextmanager
def _at(path: Path, number: int) -> Iterator[None]:
    """Name the line in an error."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path.name}:{number}: {error}") from None


def _cells(line: str, columns: tuple[str, ...]) -> dict[str, str]:
    values = line.split()
    if len(values) != len(columns):
        raise ValueError(f"{len(values)} values for {len(columns)} columns")
    return dict(zip(columns, values, strict=True))


def _shared(cells: dict[str, str]) -> dict[str, Any]:
    """The columns that both kinds of tables have."""
    return {
        "id": cells["id"],
        "orders": words.word("orders", cells["orders"], words.ORDERS),
        "streams": words.word("stream", cells["stream"], words.STREAMS),
        "alternate": cells["stream"] == "alt",
        "client": words.word("client", cells["client"], words.CLIENTS),
        "outcomes": words.members("outcomes", cells["outcomes"], Outcome),
        "retries": words.members("retries", cells["retries"], Reason),
        "settled": words.settled(cells["settled"]),
    }


def _engine_row(cells: dict[str, str], prefix: str) -> Row:
    place, fault = _fault(cells["id"])
    more = _with(cells["with"])
    words.word("ends", cells["ends"], ENDS)
    words.word("kept", cells["kept"], {"-": (), "P": (), "D": (), "PD": ()})
    return Row(
        **_shared(cells) | {"id": prefix + cells["id"]},
        phase=place.phase,
        fails=text(place, fault, cells["ends"]),
        legs=words.legs(cells["legs"]),
        strike=strike(place, fault, always=more.pop("always", False)),
        lease="P" in cells["kept"],
        stranded="D" in cells["kept"],
        **more,
    )


def _fault(id_: str) -> tuple[Place, Fault]:
    """The place and the longest name of a fault with which the id begins."""
    first, _, rest = id_.partition("-")
    place = words.word("id", first, PLACES)
    names = [name for name in place.faults if f"{rest}-".startswith(f"{name}-")]
    if not names:
        raise ValueError(f"id: {rest!r} begins with none of {', '.join(place.faults)}")
    return place, place.faults[max(names, key=len)]


def _with(value: str) -> dict[str, Any]:
    """What is not as usual: `always,short,Local,requests=3,ready=0/1`."""
    fields: dict[str, Any] = {}
    for part in value.split(",") if value != words.NOTHING else ():
        name, _, number = part.partition("=")
        match name:
            case "always":
                fields["always"] = True
            case "requests":
                fields["requests"] = int(number)
            case "ready":
                prefill, decode = number.split("/")
                fields["ready"] = (int(prefill), int(decode))
            case _ if name in words.POLICY:
                fields["policies"] = words.POLICY[name]
            case _:
                fields["deadlines"] = words.word("with", name, words.DEADLINES)
    return fields


def _texts(lines: list[str]) -> dict[str, str]:
    """The texts of a row. A line that is indented further goes on with the text above it."""
    texts: dict[str, str] = {}
    key = ""
    for line in lines:
        written = line.removeprefix(_INDENT)
        if written.startswith(" ") and key:
            texts[key] += ("" if key == "test" else " ") + written.strip()
        else:
            key, _, value = written.partition(":")
            texts[words.word("text", key, dict.fromkeys(_TEXTS, key))] = value.strip()
    return texts


def _scenario_row(cells: dict[str, str], texts: dict[str, str]) -> Row:
    fields = _shared(cells) | texts
    missing = [name for name in ("fails", "client", "test") if not fields.get(name)]
    if missing:
        raise ValueError(f"{cells['id']}: a text is missing: {', '.join(missing)}")
    policy = fields.pop("policy", None)
    if policy is not None:
        fields["policies"] = words.word("policy", policy, words.POLICY)
    return Row(phase=words.word("phase", cells["phase"], words.PHASES), **fields)
