"""The check of who writes state where a request is served."""

import pytest

from scripts.ownership import main, problems

_TEN = "\n".join(f"        self.{letter} = 0" for letter in "abcdefghij")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("self.a = 1", ""),
        ("self.a.b = 1", "m.py:3: self.a.b belongs to a; assign it in a method of its class"),
        ("leg.deadline = 1", "m.py:3: leg.deadline belongs to leg; assign it in a method of its class"),
        ("x, leg.once = 1, True", "m.py:3: leg.once belongs to leg; assign it in a method of its class"),
        ("self.request.deadline += 1", "m.py:3: self.request.deadline belongs to request; assign it in a method"),
        ("request.timeline.handoff = 1", ""),
        ("counters.settling += 1", ""),
        ("made = Leg(); made.prefill = 1", ""),
    ],
)
def test_only_the_owner_of_state_assigns_it(body: str, sentence: str) -> None:
    found = list(problems("m.py", f"class C:\n    def f(self, leg, request, counters):\n        {body}\n"))
    assert [problem[: len(sentence)] for problem in found] == ([sentence] if sentence else [])


def test_a_class_has_at_most_ten_attributes() -> None:
    source = f"class C:\n    def __init__(self):\n{_TEN}\n"
    assert not list(problems("m.py", source))
    (problem,) = problems("m.py", f"{source}        self.k = 0\n")
    assert problem.startswith("m.py:1: C has 11 attributes; divide it")


def test_the_gateway_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0, capsys.readouterr().err
