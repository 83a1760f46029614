"""Mutates each row of the table that settles hand-offs: `python -m tests.mutations.rows`.

It removes a row, or gives it another row's step. The recorded scripts that reach the row then have to do something else
than what is on record. No mutant is equivalent.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Final
from unittest.mock import patch

from pdx_proxy.handoff.settle import ROWS, Row, Step
from pdx_proxy.handoff.situation import Situation
from tests.unit.proxy.handoff.record import NUMBER, PATH, digest
from tests.unit.proxy.handoff.situations import Script, scripts
from tests.unit.proxy.handoff.virtual_time import run_virtually
from tests.unit.proxy.handoff.world import run

Scripts = list[tuple[Script, str]]
"""Scripts and their hashes on record."""
_SETTLE: Final = "pdx_proxy.handoff.settlements.settle"
_MOST_STEPS: Final = 20
"""More than any settlement takes."""
STEPS: Final[tuple[Step, ...]] = tuple(dict.fromkeys(row.step for row in ROWS))


@dataclass(frozen=True, slots=True)
class Mutant:
    """A table in which one row is gone or has another step."""

    row: int
    step: Step | None

    @property
    def rows(self) -> tuple[Row, ...]:
        """The table."""
        changed = () if self.step is None else (replace(ROWS[self.row], step=self.step),)
        return (*ROWS[: self.row], *changed, *ROWS[self.row + 1 :])

    def __str__(self) -> str:
        return f"row {self.row + 1} ({ROWS[self.row].why}): {'removed' if self.step is None else self.step}"


def mutants() -> Iterator[Mutant]:
    """Yield every mutant."""
    for number, row in enumerate(ROWS):
        yield Mutant(number, None)
        yield from (Mutant(number, step) for step in STEPS if step != row.step)


def by_row() -> list[Scripts]:
    """Return the recorded scripts that reach each row."""
    reaching: list[Scripts] = [[] for _ in ROWS]
    seen: set[int] = set()

    def watch(situation: Situation) -> Step:
        number = next(number for number, row in enumerate(ROWS) if row.fits(situation))
        seen.add(number)
        return ROWS[number].step

    with patch(_SETTLE, watch):
        for script, recorded in zip(scripts(NUMBER), PATH.read_text(encoding="utf-8").split(), strict=True):
            seen.clear()
            run_virtually(run(script))
            for number in seen:
                reaching[number].append((script, recorded))
    return reaching


def is_noticed(mutant: Mutant, reaching: Scripts) -> bool:
    """Whether a script does something else than what is on record."""
    rows = mutant.rows
    for script, recorded in reaching:
        steps = count(1)

        def decide(situation: Situation, steps: Iterator[int] = steps) -> Step:
            if next(steps) > _MOST_STEPS:
                raise LookupError("the loop does not end")
            return next(row.step for row in rows if row.fits(situation))

        try:
            with patch(_SETTLE, decide):
                if digest(run_virtually(run(script))) != recorded:
                    return True
        except (AssertionError, LookupError, StopIteration, RuntimeError):
            return True
    return False


def main() -> int:
    """Try every mutant; return 1 unless each is noticed."""
    reaching, tried, unnoticed = by_row(), 0, 0
    for mutant in mutants():
        tried += 1
        if not is_noticed(mutant, reaching[mutant.row]):
            unnoticed += 1
            sys.stdout.write(f"NOT NOTICED: {mutant}\n")
    sys.stdout.write(f"{tried} mutants of {len(ROWS)} rows, {unnoticed} not noticed\n")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
