"""The paths and parameters of docs/api.md as data, for the tests that compare them with vLLM and with the gateway."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pdx_api.vllm.versions import OLDEST

DOCUMENT: Final = Path(__file__).parents[1] / "docs/api.md"
PARAMETERS: Final = Path(__file__).parent / "api_parameters.txt"
_REFUSES: Final = re.compile(r"vLLM refuses it(?: from (\d+\.\d+) on)?")
PATHS: Final = {
    "text": "/v1/completions",
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A row of the paths' table."""

    method: str
    path: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the parameters' file. `of` names the paths that have the parameter."""

    name: str
    of: str
    verdict: str
    to_prefill: str
    example: dict[str, Any]
    note: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A row of the parameters' file, for one of its paths."""

    name: str
    kind: str
    verdict: str
    to_prefill: str
    example: dict[str, Any]
    refused_from: str
    """The first version of vLLM that answers 400 to the example, as 0.28; empty: none does."""

    @property
    def label(self) -> str:
        return f"{self.kind}-{self.verdict}-{self.name}"


def endpoints() -> list[Endpoint]:
    """Every path in the table."""
    _, _, table = DOCUMENT.read_text().partition("| path | verdict | why |\n|---|---|---|\n")
    found = []
    for line in table.partition("\n\n")[0].splitlines():
        names, verdict, _ = (cell.strip() for cell in line.strip("|").split(" |"))
        for name in names.split(", "):
            method, path = name.strip("`").split(" ")
            found.append(Endpoint(method, path, verdict))
    return found


def sections() -> dict[str, list[Row]]:
    """The rows of the parameters' file by the titles of its sections."""
    found: dict[str, list[Row]] = {}
    for line in PARAMETERS.read_text().splitlines():
        if line.startswith("## "):
            rows = found.setdefault(line.removeprefix("## "), [])
        elif line and not line.startswith("#"):
            name, of, verdict, to_prefill, example, note = (cell.strip() for cell in line.split(" |"))
            rows.append(Row(name, of, verdict, to_prefill, json.loads(example), note))
    return found


def parameters() -> list[Parameter]:
    """Every parameter, once for each of its paths."""
    found: list[Parameter] = []
    for row in (row for rows in sections().values() for row in rows):
        kinds = ("text", "chat") if row.of == "both" else tuple(row.of.split(", "))
        refuses = _REFUSES.search(row.note)
        since = (refuses[1] or OLDEST.version) if refuses else ""
        found += [Parameter(row.name, kind, row.verdict, row.to_prefill, row.example, since) for kind in kinds]
    return found
