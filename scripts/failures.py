"""docs/failure-matrix.md: keeps its prose and generates its tables from the rows of the failure matrix."""

from collections.abc import Iterable, Mapping
from typing import Final

from pdx_api.names import PrefillFailure
from tests.failure_matrix.row import (
    ALL,
    MOONCAKE_ALL,
    MOONCAKE_D_WAITS,
    MOONCAKE_P_FIRST,
    PEERS,
    POOL,
    PULL,
    PULL_AND_POOL,
    PUSH,
    RETRY,
    Phase,
    Row,
    Wiring,
)
from tests.failure_matrix.rows import matrix

BEGIN: Final = "<!-- Written by `make generate` from tests/failure_matrix. -->\n"
_NAMES: Final = ("what fails", "order", "stream", "the client sees", "engines see", "counters", "test")
_HEAD: Final = f"| {' | '.join(_NAMES)} |\n{'|---' * len(_NAMES)}|\n"
_ORDERS: Final[Mapping[tuple[Wiring, ...], str]] = {
    ALL: "all",
    PEERS: "NIXL",
    PULL: "NIXL, PrefillFirst",
    PUSH: "push",
    POOL: "pool",
    PULL_AND_POOL: "PrefillFirst",
    MOONCAKE_ALL: "Mooncake",
    MOONCAKE_P_FIRST: "Mooncake, PrefillFirst",
    MOONCAKE_D_WAITS: "Mooncake, D waits",
}


def failures(document: str) -> str:
    """The document with new tables."""
    prose = document.partition(BEGIN)[0]
    return prose + BEGIN + "".join(_section(phase) for phase in Phase)


def _section(phase: Phase) -> str:
    lines = "".join(f"| {' | '.join(_cells(row))} |\n" for row in matrix() if row.phase is phase)
    return f"\n## {phase.capitalize()}\n{_HEAD}{lines}"


def _cells(row: Row) -> Iterable[str]:
    streams = (
        {(False, True): "both", (True,): "yes", (False,): "no"}[row.streams] if not row.alternate else "alternating"
    )
    policy = "" if row.policies == RETRY else f" ({_policies(row.policies)})"
    test = f"`{row.id}`" if row.runs else f"`{row.test.partition('::')[2].partition('[')[0]}`"
    return (row.fails + policy, _ORDERS[row.orders], streams, str(row.client), _engines(row), _counters(row), test)


def _policies(policies: tuple[PrefillFailure, ...]) -> str:
    return "any onPrefillFailure" if len(policies) > 1 else f"onPrefillFailure {policies[0]}"


def _engines(row: Row) -> str:
    if row.engines:
        return row.engines
    names = ("P", "D", "D whole")
    counts = [f"{name} {_number(count)}" for name, count in zip(names, row.legs, strict=True) if count != 0]
    kept = [text for held, text in ((row.stranded and row.settled_lost, "D keeps blocks"),) if held]
    return ", ".join([*counts, *kept]) or "nothing"


def _number(count: int | None) -> str:
    return "1 or 2" if count is None else str(count)


def _counters(row: Row) -> str:
    settled = row.settled
    how = [f"settled {name} {count}" for name, count in settled.items()] if isinstance(settled, Mapping) else []
    either = "" if isinstance(settled, Mapping) else f"settled {' or '.join(how or 'not' for how in settled)}"
    parts = [f"{name} {count}" for name, count in row.outcomes.items()]
    parts += [f"retries {name} {count}" for name, count in row.retries.items()]
    return "; ".join([*parts, *how, *filter(None, (either, row.counters))])
