"""The prose linter: what each rule finds, and what is no prose."""

import pytest

from scripts.prose.__main__ import main, problems
from scripts.prose.rules import BUILT_IN, RULES, Rule


def rules_of(page: str) -> list[str]:
    """The rules that a page breaks."""
    return [rule for _, rule, _ in problems(page)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_finds_its_sentence_and_accepts_the_other(rule: Rule) -> None:
    assert rule.name in rules_of(f"{rule.before}\n")
    assert not rules_of(f"{rule.after}\n")


def test_there_are_at_most_twenty() -> None:
    assert len(RULES) + len(BUILT_IN) + len(["long-sentence"]) <= 20


TERMS = " ".join(f"word-{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")
FOUND = {
    "over a line's end": ("New pairs start in\nplace of old ones.\n", [(1, "in-place-of")]),
    "in a table": ("| a |\n|---|\n| begins anew |\n", [(3, "anew")]),
    "in a heading": ("Text.\n\n## Begin anew\n", [(3, "anew")]),
    "in a list": ("* The engine tells it.\n", [(1, "person-verb")]),
    "at the beginning of a sentence": ("It is so. What is shed has a body.\n", [(1, "what-subject")]),
    "two in a line": ("It goes on anew.\n", [(1, "go-on"), (1, "anew")]),
    "a long sentence": (f"It {TERMS} and {TERMS}.\n", [(1, "long-sentence")]),
    "a word twice": ("It retries the the request.\n", [(1, "lexical_illusions")]),
    "one idea twice": ("It has an added bonus.\n", [(1, "redundancy.misc.after_the_deadline")]),
}


@pytest.mark.parametrize(("page", "expected"), FOUND.values(), ids=FOUND)
def test_found(page: str, expected: list[tuple[int, str]]) -> None:
    assert [(line, rule) for line, rule, _ in problems(page)] == expected


ACCEPTED = {
    "a span of code": "Run `pdx anew --beside`.\n",
    "a block of code": "```\nbegins anew, e.g. 5 %\n```\n",
    "a link's target": "[Again](anew/beside.md)\n",
    "a comment": "<!-- begins anew -->\n",
    "exempt text": "<!-- prose off -->\nbegins anew\n<!-- prose on -->\n",
    "generated text": "Text.\n\n<!-- Written by `make generate` from x. -->\nbegins anew\n",
    "a question": "What is shed?\n",
    "a title": "# What the gateway costs\nIt costs 0.1 ms.\n",
    "the introduction of a list": "What PDX derives:\n\n* flags\n",
    "a person": "You know your model, and administrators want a quota.\n",
    "a percentage in a table": "| 5 % |\n|---|\n| 6 % |\n",
    "two sentences": f"It {TERMS}. It {TERMS}.\n",
    "a heading and its text": "# PDX\nPDX serves.\n",
    "code between two words": "an `a` an `b`\n",
}


@pytest.mark.parametrize("page", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(page: str) -> None:
    assert not list(problems(page))


def test_the_report_names_the_line(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    page = tmp_path_factory.mktemp("pages") / "page.md"
    page.write_text("One.\n\nIt begins anew.\n")
    assert main([str(page)]) == 1
    assert capsys.readouterr().err == f"{page}:3: anew: “anew”: write again\n"
