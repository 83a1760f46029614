"""docs/settling.md: keeps its prose and generates its tables of steps from the rows that decide."""

from collections.abc import Iterable
from enum import Enum
from typing import Final

from pdx_proxy.handoff.settle import ROWS, Ask, CloseWhenOpen, Done, Free, Row, Step, Substitute
from pdx_proxy.handoff.situation import Kind, Notifier
from pdx_proxy.telemetry.counters import Settlement
from scripts.marked import with_part

BEGIN: Final = "<!-- Written by `make generate` from proxy/pdx_proxy/handoff/settle.py. -->\n"
_SECTIONS: Final = (
    ("Pull", (Kind.PULL,)),
    ("Pool", (Kind.POOL, Kind.UNSTOPPABLE_POOL)),
    ("Push", (Kind.PUSH, Kind.NOTIFIED_PUSH)),
)
_ASKS: Final = {
    Ask.START_PREFILL: "send P its leg",
    Ask.AWAIT_PREFILL: "wait until P has ended",
    Ask.STOP_PREFILL: "give P 1 s to finish, and then stop it",
    Ask.WATCH_DECODE: "wait until D has the KV, or has ended without it",
    Ask.CLOSE_DECODE: "read D's metrics, and then close D's leg",
}


def settling(document: str) -> str:
    """Return the document with new tables."""
    tables = "".join(_section(title, kinds) for title, kinds in _SECTIONS)
    return with_part(document, BEGIN, f"{tables}\n")


def _section(title: str, kinds: tuple[Kind, ...]) -> str:
    names = ("kind", "P's leg", "D's leg", "stream", "who can notify P", "the next step", "why")
    rows = [row for row in ROWS if row.kinds & set(kinds)]
    shown = [True, True, True, any(row.stream is not None for row in rows), title == "Pull", True, True]
    if title == "Pull":
        shown[0] = False
    head = "| " + " | ".join(name for name, show in zip(names, shown, strict=True) if show) + " |\n"
    lines = (
        "| " + " | ".join(cell for cell, show in zip(_cells(row, kinds), shown, strict=True) if show) + " |\n"
        for row in rows
    )
    return f"\n### {title}: the steps\n{head}{'|---' * sum(shown)}|\n{''.join(lines)}"


def _cells(row: Row, kinds: tuple[Kind, ...]) -> tuple[str, ...]:
    return (
        _names(row.kinds, kinds),
        _names(row.prefill),
        _names(row.decode),
        {None: "both", True: "yes", False: "no"}[row.stream],
        "any" if row.notifier == frozenset(Notifier) else _names(row.notifier),
        _step(row.step),
        row.why,
    )


def _names(members: Iterable[Enum], every: Iterable[Enum] = ()) -> str:
    """Return the values of members in the order of their definition; `every`: all that there are."""
    members = frozenset(members)
    if every and members == frozenset(every):
        return "all"
    order = list(type(next(iter(members))))
    return ", ".join(f"`{member.value}`" for member in sorted(members, key=order.index))


def _step(step: Step) -> str:
    if isinstance(step, Done):
        return "none; nothing is counted" if step.result is None else f"none; `{step.result}`"
    if isinstance(step, Ask):
        return _ASKS[step]
    if isinstance(step, Free):
        if step is Free.BY_REFUSED_LEG:
            return "send an invalid leg to a D; `released` if D refuses the leg, otherwise `lease`"
        return "send a leg of one token to a D; `released` if D answers 200, otherwise `lease`"
    if isinstance(step, Substitute):
        prompt = "a short prompt" if step.short else "the whole prompt"
        notice = "if D's leg is open, close it; wait 1 s, and then " if step.after_notice else ""
        return f"{notice}send P a leg with {prompt}; `finished` if P answers 200, otherwise `{step.otherwise}`"
    assert isinstance(step, CloseWhenOpen)
    seconds = "10 s" if step.seconds is None else f"{step.seconds:g} s"
    late = "" if step.otherwise is Settlement.RELEASED else f", or `{step.otherwise}` after that time"
    return f"close D's leg at its first event, at the latest after {seconds}; `released`{late}"
