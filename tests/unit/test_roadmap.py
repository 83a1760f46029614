"""The first changes that ROADMAP.md suggests name files that exist, and GitHub can read its forms."""

import re
from pathlib import Path

import pytest
import yaml

from tests.documents import ROOT

CHANGES = [line for line in (ROOT / "ROADMAP.md").read_text().splitlines() if line.startswith("| **")]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("line", CHANGES, ids=lambda line: line[4:24])
def test_a_first_change_has_a_place_and_a_test(line: str) -> None:
    _, place, test = line.strip("| ").split(" | ")
    for cell in (place, test):
        paths = re.findall(r"`((?:api|cli|operator|proxy|sim|scripts|tests|examples)/[\w/.]+)`", cell)
        assert paths, cell
        assert all((ROOT / path).exists() for path in paths), paths


def test_there_are_five_first_changes() -> None:
    assert len(CHANGES) == 5


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_asks_for_something(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    fields = [field["id"] for field in form.get("body", []) if field["type"] != "markdown"]
    assert form == {"blank_issues_enabled": True} or (form["name"] and len(set(fields)) == len(fields) > 0)
