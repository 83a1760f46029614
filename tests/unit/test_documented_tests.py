"""docs/security-tests.md names a test for each promise, and each of these tests exists."""

import re
from typing import Final

import pytest

from tests.documents import ROOT

_PAGE: Final = (ROOT / "docs" / "security-tests.md").read_text(encoding="utf-8")
_NAMED: Final = tuple(dict.fromkeys(re.findall(r"`(\S*\btest_\w+)`", _PAGE)))
_HEADS: Final = re.compile(r"^\|.*\| test \|\n\|[-|]+\|\n((?:\|.*\|\n)+)", re.MULTILINE)


@pytest.mark.parametrize("name", _NAMED)
def test_a_named_test_exists(name: str) -> None:
    path, _, test = name.partition("::")
    assert test, f"{name} has no path"
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^ *(?:async )?def {test}\(", text, re.MULTILINE), name


def test_every_promise_has_a_test() -> None:
    rows = [row for table in _HEADS.findall(_PAGE) for row in table.splitlines()]
    assert len(rows) > 30
    assert [
        row for row in rows if not re.search(r"`tests/\S+::test_\w+`", row.rpartition("|")[0].rpartition(" | ")[2])
    ] == []
