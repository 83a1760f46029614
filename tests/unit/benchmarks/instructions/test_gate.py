"""When a count is too high, what grew, and how the accepted counts may change."""

from dataclasses import replace

import pytest

from benchmarks.instructions import accepted
from benchmarks.instructions.accepted import Accepted, AcceptedCase, Change
from benchmarks.instructions.environment import differences
from benchmarks.instructions.gate import Counted, Verdict, case_faults, compare, expected, growth, raise_faults
from benchmarks.instructions.profile import Function, Profile
from benchmarks.instructions.report import table, verdict_lines

_ENVIRONMENT = {"python": "3.11.7", "glibc": "glibc 2.36"}
_FUNCTIONS = {
    "CPyDef_leg___Leg___end": Function(40_000, 500, 3),
    "CPyDef_body___read_body": Function(30_000, 200, 1),
    "PyDict_GetItem.part.0": Function(50_000, 9_000, 900),
}
_FEATURE = Change("2026-11-28", "completion", 100_000, 103_000, "a feature")


def profile(instructions: float = 100_000, **changed: Function) -> Profile:
    return Profile(instructions, 38.0, {**_FUNCTIONS, **changed})


def case(instructions: int = 100_000, digest: str = "d") -> AcceptedCase:
    return replace(AcceptedCase.of(digest, profile()), instructions=instructions)


def one(instructions: int = 100_000, *changes: Change) -> Accepted:
    return Accepted("2026-11-27", _ENVIRONMENT, 800, {"completion": case(instructions)}, changes)


def verdict(counts: list[float], spread: float = 0.0, changed: dict[str, Function] | None = None) -> Verdict:
    counted = {"completion": Counted("d", [profile(count, **(changed or {})) for count in counts], 0.0)}
    (found,) = compare({"completion": case()}, counted, {"completion": spread})
    return found


@pytest.mark.parametrize(
    ("counts", "spread", "passes"),
    [
        ([100_000, 100_000, 100_000], 0.0, True),
        ([101_900, 101_990, 101_990], 0.0, True),
        ([102_100, 102_100, 102_100], 0.0, False),
        ([102_000, 103_000, 104_000], 0.0, True),  # three times the spread of 1.9 %
        ([109_000, 109_100, 109_200], 0.0, False),
        ([103_000, 103_000, 103_000], 0.012, True),  # the commit to compare with had that spread
        ([50_000, 50_000, 50_000], 0.0, True),
    ],
)
def test_a_count_may_rise_by_2_percent_or_three_spreads(counts: list[float], spread: float, passes: bool) -> None:
    assert verdict(counts, spread).passes is passes


def test_the_functions_that_grew_are_named_with_their_calls() -> None:
    doubled = {
        "CPyDef_leg___Leg___end": Function(70_000, 510, 6),
        "CPyDef_body___again": Function(20_000, 9, 1),
        "PyDict_GetItem.part.0": Function(60_000, 9_400, 950),
    }
    found = verdict([130_000], changed=doubled)

    assert growth(found) == [
        "leg.Leg.end: +30,000 instructions (40,000 -> 70,000), 3 -> 6 calls",
        "body.again: 20,000 instructions, 1 calls; too small to be recorded before",
        "PyDict_GetItem.part.0: +400 instructions (9,000 -> 9,400), 900 -> 950 calls",
    ]
    lines = verdict_lines([found], "COMMAND")
    assert lines[0].startswith("completion: +30.0% instructions, at most +2.0% are allowed.")
    assert lines[-1].endswith("COMMAND")
    assert "130,000" in table([found], {"completion": Counted("d", [profile(130_000)], 0.0)}, 800.0)


def test_many_small_growths_are_named_too() -> None:
    found = verdict([104_000], changed={"CPyDef_leg___Leg___end": Function(40_100, 600, 3)})
    assert growth(found) == ["leg.Leg.end: +100 instructions (40,000 -> 40,100), 3 -> 3 calls"]


def test_a_lower_count_asks_to_be_recorded() -> None:
    assert verdict_lines([verdict([99_000, 99_000])], "COMMAND") == []
    assert verdict_lines([verdict([90_000, 90_000])], "COMMAND") == [
        "Lower than accepted: completion. Record this, so that it stays so: COMMAND"
    ]


def test_a_case_is_compared_only_with_itself() -> None:
    counted = {"completion": Counted("another", [profile()], 0.0), "queue": Counted("d", [profile()], 0.0)}
    assert compare({"completion": case()}, counted, {}) == []
    assert case_faults({"completion": case()}, {"completion": "another", "queue": "d"}) == [
        "The case queue has no accepted count.",
        "The case completion is no longer the one that was counted.",
    ]
    assert case_faults({"completion": case()}, {}) == [
        "The case completion exists no longer, but has an accepted count."
    ]
    assert case_faults({"completion": case()}, {"completion": "d"}) == []


def test_another_environment_gets_the_ratios_of_later_changes() -> None:
    assert expected({"completion": case(90_000)}, [_FEATURE])["completion"].instructions == 92_700
    recounted = Change("2026-11-29", "completion", 103_000, 150_000, "another ruler", recounted=True)
    assert expected({"completion": case(90_000)}, [_FEATURE, recounted])["completion"].instructions == 92_700
    assert differences(_ENVIRONMENT, {**_ENVIRONMENT, "python": "3.11.2"}) == [
        "python: 3.11.7 was recorded, 3.11.2 is here"
    ]
    assert differences(_ENVIRONMENT, dict(_ENVIRONMENT)) == []


def test_the_raises_of_a_case_have_a_limit_that_cuts_do_not_change() -> None:
    changes = [
        _FEATURE,
        Change("2026-11-29", "completion", 103_000, 60_000, "a cut"),
        Change("2026-11-30", "completion", 60_000, 61_100, "another feature"),
    ]
    assert raise_faults(one(61_100, *changes)) == []

    more = Change("2026-12-01", "completion", 61_100, 61_600, "one more")
    (fault,) = raise_faults(one(61_600, *changes, more))
    assert raise_faults(one(61_600, *changes, replace(more, recounted=True))) == []
    assert fault.startswith("The raises of completion are 5.7% in total")


@pytest.mark.parametrize(
    ("present", "fault"),
    [
        (one(103_000, _FEATURE), None),
        (one(104_000, _FEATURE, Change("2026-11-28", "completion", 103_000, 104_000, "more")), None),
        (one(100_000, _FEATURE, Change("2026-11-28", "completion", 103_000, 100_000, "taken back")), None),
        (one(103_000), "do not lead from"),
        (one(104_000, _FEATURE), "do not lead from"),
        (replace(one(103_000), environment={"python": "3.12"}), "do not lead from"),
        (one(103_000, replace(_FEATURE, why=" ")), "has no reason"),
        (replace(one(), cases={}), "is no longer there"),
    ],
)
def test_a_count_changes_only_with_an_entry(present: Accepted, fault: str | None) -> None:
    faults = accepted.history_faults([one()], present)
    assert (fault in faults[0]) if fault else faults == []


def test_an_entry_is_never_removed() -> None:
    faults = accepted.history_faults([one(), one(103_000, _FEATURE)], one())
    assert faults == ["The change of completion on 2026-11-28 (a feature) is no longer there."]


def test_the_file_keeps_what_is_written() -> None:
    written = accepted.amended(one(), {"completion": case(103_000)}, "2026-11-28", "a feature")

    assert written.changes == (_FEATURE,)
    assert accepted.parse(accepted.render(written)) == written
    assert '"leg.Leg.end": [40000, 500, 3]' in accepted.render(written)


def test_small_functions_are_not_recorded() -> None:
    recorded = AcceptedCase.of("d", profile(CPyDef_a___small=Function(150, 10, 1), small=Function(450, 450, 1)))
    assert list(recorded.functions) == ["body.read_body", "leg.Leg.end"]
    assert list(recorded.others) == ["PyDict_GetItem.part.0"]
