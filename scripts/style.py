"""docs/style.md: keeps its prose and generates the table of the linter's rules. Pure."""

from typing import Final

from scripts.prose.rules import LONGEST, RULES

BEGIN: Final = "<!-- Written by `make generate` from scripts/prose/rules.py. -->\n"
_HEAD: Final = "| rule | before | after | write |\n|---|---|---|---|\n"
_OTHERS: Final = (
    ("long-sentence", "", "", f"at most {LONGEST} words"),
    ("lexical_illusions", "The the gateway retries.", "The gateway retries.", "each word once"),
    ("redundancy", "The gift has an added bonus.", "The gift has a bonus.", "each idea once"),
)


def style(document: str) -> str:
    """The document with a new table."""
    rows = [*((rule.name, rule.before, rule.after, rule.instead) for rule in RULES), *_OTHERS]
    lines = [f"| `{name}` | {before} | {after} | {instead} |\n" for name, before, after, instead in rows]
    return document.partition(BEGIN)[0] + BEGIN + "\n" + _HEAD + "".join(lines)
