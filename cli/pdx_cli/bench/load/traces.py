"""Reads traces: one row for each request, with the ids of its prompt's blocks where the source provides them."""

import csv
import difflib
import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdx_sim.core.blocks import Prefix

BLOCK_TOKENS: Final = 512
"""Tokens of one id in the column prefix_blocks."""
ENGINE_BLOCK: Final = 16
"""Tokens of a KV block of an engine (vLLM's default). What does not fill one is not cached."""
_COLUMNS: Final = ("arrival_ms", "input_tokens", "output_tokens")
_BLOCKS: Final = "prefix_blocks"


class TraceError(ValueError):
    """A trace cannot be used; the text is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace."""

    index: int
    at: float
    """Seconds since the first request."""
    prompt: int
    """Tokens."""
    output: int
    """Tokens; at least one."""
    prefix: Prefix
    """Chain hashes of the prompt's blocks. Equal hashes are equal beginnings."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of one trace, by time."""

    name: str
    requests: tuple[Request, ...]

    @property
    def rate(self) -> float:
        """Requests per second at the trace's own speed."""
        span = self.requests[-1].at - self.requests[0].at
        return len(self.requests) / span if span > 0 else float(len(self.requests))

    def at_rate(self, rate: float) -> Iterator[tuple[float, Request]]:
        """All requests with their times when the whole trace passes faster or slower, at `rate` requests per second."""
        factor = self.rate / rate
        return ((request.at * factor, request) for request in self.requests)

    @property
    def shared(self) -> float:
        """The share of prompt tokens that an unlimited cache would have, if it had every earlier prompt."""
        seen: set[int] = set()
        found = 0
        for request in self.requests:
            found += max((end for key, end in request.prefix if key in seen), default=0)
            seen.update(key for key, _ in request.prefix)
        return found / sum(request.prompt for request in self.requests)


class Chains:
    """Gives equal beginnings of prompts equal numbers, whatever the ids of a trace mean."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._count = 0

    def prefix(self, ids: Iterable[int], tokens: int) -> Prefix:
        """The prefix of a prompt of so many tokens whose blocks have these ids."""
        found: list[tuple[int, int]] = []
        parent, end = 0, 0
        for each in ids:
            end = min(end + BLOCK_TOKENS, tokens)
            full = end // ENGINE_BLOCK * ENGINE_BLOCK
            if found and full <= found[-1][1]:
                break
            if not full:
                break
            parent = self._numbers.setdefault((parent, each), len(self._numbers) + 1)
            found.append((parent, full))
        return tuple(found)

    def alone(self, tokens: int) -> Prefix:
        """The prefix of a prompt that shares nothing with another."""
        self._count += 1
        return self.prefix([-self._count, *range(1, -(-tokens // BLOCK_TOKENS))], tokens)


def read(path: Path) -> Trace:
    """Read a trace, compressed with gzip or not. Raises TraceError."""
    try:
        # Excel writes a byte order mark, which is not a part of the first column's name.
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
            requests = list(_requests(csv.DictReader(file), path.name))
    except FileNotFoundError:
        raise TraceError(f"There is no trace {path}: name a CSV file with the columns {', '.join(_COLUMNS)}.") from None
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(
            f"The trace {path} cannot be read: {_reason(error)}; name a CSV file, or a .csv.gz."
        ) from error
    if not requests:
        raise TraceError(f"The trace {path} has no request: give it at least one row below its head.")
    requests.sort(key=lambda each: each.at)
    first = requests[0].at
    ordered = (Request(i, each.at - first, each.prompt, each.output, each.prefix) for i, each in enumerate(requests))
    return Trace(path.name.removesuffix(".gz").removesuffix(".csv"), tuple(ordered))


def _reason(error: Exception) -> str:
    match error:
        case gzip.BadGzipFile():
            return "gzip has not compressed it"
        case EOFError():
            return "it is incomplete"
        case UnicodeDecodeError():
            return "it is no text"
        case OSError(strerror=str(text)):
            return text
        case _:
            return str(error)


def _requests(rows: "csv.DictReader[str]", name: str) -> Iterator[Request]:
    columns = rows.fieldnames or ()
    _check_columns(columns, name)
    chains = Chains()
    for number, row in enumerate(rows):
        line = rows.line_num
        if any(further := row.get(None) or ()):
            count = f"{len(columns) + len(further)} values, the first line {len(columns)} columns"
            raise TraceError(f"{name}:{line} has {count}; leave out a value, or name its column.")
        at, prompt, output = (_number(row, column, name, line) for column in _COLUMNS)
        if prompt < 1:
            raise TraceError(f"{name}:{line}: {_COLUMNS[1]} is {row[_COLUMNS[1]]}; write 1 or more.")
        prefix = _prefix(row.get(_BLOCKS) or "", int(prompt), chains, f"Line {line} of the trace {name}")
        yield Request(number, at / 1000, int(prompt), max(1, int(output)), prefix)


def _check_columns(columns: Sequence[str], name: str) -> None:
    """Refuse a first line that does not name the columns; raises TraceError."""
    ours = (*_COLUMNS, _BLOCKS)
    if twice := [column for column in ours if columns.count(column) > 1]:
        raise TraceError(f"{name}: column {twice[0]} appears twice; leave out one of them.")
    missing = next((column for column in _COLUMNS if column not in columns), None)
    if missing is None:
        return
    if len(columns) == 1 and any(separator in columns[0] for separator in ";\t"):
        raise TraceError(f"{name}: the first line has no comma; separate the columns by commas.")
    others = {column.lower(): column for column in columns if column not in ours}
    if near := difflib.get_close_matches(missing, others, n=1):
        raise TraceError(f"{name}: the first line has {others[near[0]]!r}; did you mean {missing}?")
    raise TraceError(f"The trace {name} has no column {missing}: its first line must name the columns.")


def _prefix(text: str, tokens: int, chains: Chains, where: str) -> Prefix:
    if not text.strip():
        return chains.alone(tokens)
    try:
        ids = [int(each) for each in text.split()]
    except ValueError:
        raise TraceError(f"{where} has prefix_blocks that are no numbers: separate the ids by blanks.") from None
    if min(ids) < 0:
        raise TraceError(f"{where} has a negative id in prefix_blocks: use numbers from 0.")
    return chains.prefix(ids, tokens)


def _number(row: Mapping[str, str | None], column: str, name: str, line: int) -> float:
    try:
        value = float(row[column] or "")
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value < 1e12:
        raise TraceError(f"Line {line} of the trace {name} has no number of 0 or more in the column {column}.")
    return value
