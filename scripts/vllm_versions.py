"""The tables of vLLM's versions in docs/versions.md, and docs/vllm-contract.md with every assumption about its code."""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from benchmarks.versions.__main__ import Result, checks_of
from pdx_api.vllm.assumptions import OPEN, Assumption, Value, assumptions, differences
from pdx_api.vllm.versions import TESTED, VERSIONS
from scripts.marked import with_part

BEGIN: Final = "<!-- Written by `make generate` from api/pdx_api/vllm. -->\n"
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


def versions(document: str, results: Iterable[Result]) -> str:
    """Return the page of versions with new tables of vLLM's; `results`: of real engines."""
    return with_part(document, BEGIN, _versions(list(results)) + _differences())


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
        f"{BEGIN}[`pdx check-vllm`](reference-cli.md#pdx-check-vllm) compares each of these {len(assumptions())} "
        "assumptions with the code of a vLLM, without\nimporting it. [Versions](versions.md#vllm) lists what is "
        "different in other versions. The paths are below `vllm/`; a folder stands for all\nfiles in it. The "
        "list itself is [assumptions.txt](../api/pdx_api/vllm/assumptions.txt).\n\n"
        f"| kind | what is read |\n|---|---|\n{kinds}{groups}"
    )


def _versions(results: Sequence[Result]) -> str:
    rows = []
    for version, has in VERSIONS.items():
        found = [each for each in differences() if each.version == version]
        still = sum(each.effect.startswith(OPEN) for each in found)
        own = _last(each for each in results if each.version == version)
        rows.append(f"| {version} | {status(version, own)} | {_tests(own)} | {has.nixl} | {len(found)} | {still} |\n")
    return (
        f"\n| vLLM | status | campaign | NIXL connector | differences from {TESTED} | not handled yet |\n"
        f"|---|---|---|---|---|---|\n{''.join(rows)}"
    )


def status(version: str, results: Sequence[Result]) -> str:
    """Return how far a version was tried: with real engines in every check, without a failure, or by its code."""
    complete = {each.check for each in _last(results) if not each.failed} == {*checks_of(version)}
    return "tested" if version == TESTED or complete else "checked"


def _last(results: Iterable[Result]) -> list[Result]:
    """The last run of each check."""
    return list({each.check: each for each in results}.values())


def _tests(results: Sequence[Result]) -> str:
    """How many tests of real engines passed."""
    passed, failed = sum(each.passed for each in results), sum(len(each.failed) for each in results)
    return f"{passed} of {passed + failed}" if results else "not run"


def _differences() -> str:
    """One row for all differences of the same versions with the same effect."""
    of_each: dict[tuple[str, str], list[str]] = {}
    for each in differences():
        of_each.setdefault((each.id, each.effect), []).append(each.version)
    order = {each.id: number for number, each in enumerate(assumptions())}
    found: dict[tuple[str, str], list[str]] = {}
    for (identity, effect), of_versions in sorted(of_each.items(), key=lambda item: (order[item[0][0]], item[0][1])):
        found.setdefault((", ".join(of_versions), effect), []).append(identity)
    rows = "".join(
        f"| {', '.join(f'`{_cell(each)}`' for each in ids)} | {of_versions} | {effect} |\n"
        for (of_versions, effect), ids in found.items()
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
