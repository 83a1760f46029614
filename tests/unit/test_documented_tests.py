"""Each promise of docs/security-tests.md has a test, and each of these tests exists."""

import re

import pytest

from scripts.promises import sections
from tests.documents import ROOT


@pytest.mark.parametrize("name", sorted({name for each in sections() for row in each["row"] for name in row["tests"]}))
def test_a_named_test_exists(name: str) -> None:
    path, _, test = name.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^ *(?:async )?def {test}\(", text, re.MULTILINE), name


def test_every_promise_has_a_test() -> None:
    rows = [row for each in sections() for row in each["row"]]
    assert len(rows) > 30
    assert [row["what"] for row in rows if not row["tests"]] == []
