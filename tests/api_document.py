"""The tables of docs/api.md as data, for the tests that compare them with vLLM and with the gateway."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DOCUMENT: Final = Path(__file__).parents[1] / "docs/api.md"
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
class Parameter:
    """A row of a table of parameters, for one of its paths."""

    name: str
    kind: str
    verdict: str
    to_prefill: str
    example: dict[str, Any]
    refused: bool
    """Whether vLLM answers 400 to the example."""

    @property
    def label(self) -> str:
        return f"{self.kind}-{self.verdict}-{self.name}"


def endpoints() -> list[Endpoint]:
    """Every path in the table."""
    found = []
    for cells in _rows("path"):
        for name in cells[0].split(", "):
            method, path = name.strip("`").split(" ")
            found.append(Endpoint(method, path, cells[1]))
    return found


def parameters() -> list[Parameter]:
    """Every parameter, once for each of its paths."""
    found: list[Parameter] = []
    for name, of, verdict, to_prefill, example, note in _rows("parameter"):
        kinds = ("text", "chat") if of == "both" else tuple(of.split(", "))
        body = json.loads(example.strip("`"))
        refused = "vLLM refuses it" in note
        found += [Parameter(name.strip("`"), kind, verdict, to_prefill, body, refused) for kind in kinds]
    return found


def _rows(head: str) -> Iterator[list[str]]:
    inside = False
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" |")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == head:
            inside = True
        elif inside and not line.startswith("|---"):
            yield [cell.removeprefix("| ") for cell in cells]
