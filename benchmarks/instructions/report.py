"""The text of a comparison: a table, and one paragraph for each count that is too high. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.instructions.cases import CASES
from benchmarks.instructions.gate import Counted, Verdict, growth

_TITLES: Final = {case.name: case.title for case in CASES}


def table(verdicts: Sequence[Verdict], after: Mapping[str, Counted], polls: float) -> str:
    """Return the counts as a table of plain text."""
    lines = [
        f"{'':10} {'accepted':>10} {'counted':>10} {'change':>8} {'at most':>8} {'spread':>7} {'system calls':>12} "
        f"{'waited':>7}"
    ]
    for verdict in verdicts:
        counted = after[verdict.case]
        lines.append(
            f"{verdict.case:10} {verdict.before.instructions:10,} {verdict.after.instructions:10,} "
            f"{verdict.rise:+8.1%} {verdict.most:+8.1%} {counted.spread:7.1%} {verdict.after.system_calls:12.1f} "
            f"{counted.waited:7.0%}  {_TITLES[verdict.case]}"
        )
    lines.append(
        f"Polls are not part of these counts. Polls of four engines take {polls / 1e6:.1f} million instructions/s."
    )
    return "\n".join(lines)


def verdict_lines(verdicts: Sequence[Verdict], accept: str) -> list[str]:
    """Return why counts are too high, and what to do; empty if no count has changed. `accept`: the command for that."""
    lines: list[str] = []
    for verdict in verdicts:
        if not verdict.passes:
            lines.append(
                f"{verdict.case}: {verdict.rise:+.1%} instructions, at most {verdict.most:+.1%} are allowed. "
                "Functions that grew, with what they call:"
            )
            lines += [f"    {line}" for line in growth(verdict)]
    if lines:
        lines.append(f"Make these functions cheaper, or accept the new counts with a reason: {accept}")
    lower = [verdict.case for verdict in verdicts if verdict.rise < -verdict.most]
    if lower:
        lines.append(f"Lower than accepted: {', '.join(lower)}. Record this, so that it stays so: {accept}")
    return lines
