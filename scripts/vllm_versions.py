"""The tables of vLLM's versions in docs/versions.md, and docs/vllm-contract.md with every assumption about its code."""

import json
from itertools import groupby
from typing import Final

from pdx_api.vllm.assumptions import OPEN, Assumption, Difference, Value, assumptions, differences
from pdx_api.vllm.versions import TESTED, VERSIONS

BEGIN: Final = "<!-- Written by `make generate` from api/pdx_api/vllm. -->\n"
END: Final = "<!-- End of what `make generate` writes. -->\n"
_SHOWN: Final = 90
"""Characters of a value. A longer one is in the table of the code."""
_KINDS: Final = {
    "answers": "the members of the objects that a function builds",
    "bases": "the base classes of a class",
    "call": "the first argument of a call",
    "connector": "module and class of a registered connector",
    "constant": "the value of a constant or of an attribute",
    "environment": "an environment variable and its default",
    "field": "type and default of a member of a class",
    "flag": "a flag of vLLM's command line, with its short form",
    "members": "the members of a class",
    "method": "the parameters of a function",
    "metric": "a metric and its kind",
    "option": "the default of an entry of `kv_connector_extra_config`",
    "reads": "a function reads this member",
    "route": "a path of the HTTP API",
    "says": "a function contains this text",
    "statuses": "the HTTP statuses that a function answers",
    "text": "a text in the code",
}


def versions(document: str) -> str:
    """Return the page of versions with new tables of vLLM's."""
    before, _, rest = document.partition(BEGIN)
    return before + BEGIN + _versions() + _differences() + END + rest.partition(END)[2]


def contract() -> str:
    """Return the page with every assumption."""
    kinds = "".join(f"| `{kind}` | {meaning} |\n" for kind, meaning in _KINDS.items())
    groups = "".join(
        f"\n## {' or '.join(f'`{path}`' for path in paths)}\n"
        f"| what | value in vLLM {TESTED} | PDX's file that relies on it |\n|---|---|---|\n"
        f"{''.join(_row(each) for each in rows)}"
        for paths, rows in groupby(assumptions(), key=lambda each: each.paths)
    )
    return (
        "# What PDX assumes of vLLM's code\n"
        f"{BEGIN}[`pdx check-vllm`](reference-cli.md#pdx-check-vllm) reads each of these {len(assumptions())} "
        "assumptions in the code of a vLLM, without\nimporting it. [Versions](versions.md#vllm) lists what other "
        "versions have instead. The paths are below `vllm/`; a folder stands for all\nfiles in it. The list itself is "
        "[assumptions.txt](../api/pdx_api/vllm/assumptions.txt).\n\n"
        f"| kind | what is read |\n|---|---|\n{kinds}{groups}"
    )


def _versions() -> str:
    rows = []
    for version, has in VERSIONS.items():
        found = [each for each in differences() if each.version == version]
        still = sum(each.effect.startswith(OPEN) for each in found)
        status = "tested" if version == TESTED else "checked"
        rows.append(f"| {version} | {status} | {has.nixl} | {len(found)} | {still} |\n")
    return (
        f"\n| vLLM | status | NIXL connector | differences from {TESTED} | not handled yet |\n|---|---|---|---|---|\n"
        f"{''.join(rows)}"
    )


def _differences() -> str:
    def key(each: Difference) -> tuple[str, str]:
        return each.id, each.effect

    order = {each.id: number for number, each in enumerate(assumptions())}
    found = sorted(differences(), key=lambda each: (order[each.id], each.effect))
    rows = "".join(
        f"| `{_cell(identity)}` | {', '.join(each.version for each in group)} | {effect} |\n"
        for (identity, effect), group in groupby(found, key=key)
    )
    return f"\n| difference | in vLLM | what it means |\n|---|---|---|\n{rows}\n"


def _row(assumption: Assumption) -> str:
    place = assumption.place
    return f"| `{_cell(assumption.id)}` | {_value(assumption.value)} | [{place}](../{place}) |\n"


def _value(value: Value) -> str:
    if value is None:
        return "absent"
    if value is True:
        return "present"
    text = ", ".join(value) if isinstance(value, list) else value if isinstance(value, str) else json.dumps(value)
    return f"`{_cell(text if len(text) <= _SHOWN else f'{text[:_SHOWN]}…')}`" if text else "empty"


def _cell(text: str) -> str:
    """Return a text that may stand in a table, between backquotes."""
    return text.replace("|", "\\|").replace("`", "'").strip()
