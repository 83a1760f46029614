"""What is read from a dump of callgrind."""

import pytest

from benchmarks.instructions.profile import Function, is_own, read_profile, readable

_DUMP = """\
version: 1
creator: callgrind-3.19.0
positions: line
events: Ir sysCount sysTime
fl=(1) /python/ceval.c
fn=(1) _PyEval_EvalFrameDefault
0 100
cfn=(2) CPyDef_leg___Leg___end
calls=3 0
0 900 2 7
fn=(2)
0 300 1 4
cfi=(2) /python/dict.c
cfn=(3) dict_lookup
calls=30 0
* 600 1 3
fn=(3)
+0 590
cfn=(3)
calls=1 0
0 10
totals: 1000 2 7
"""


def test_a_dump_has_instructions_calls_and_system_calls() -> None:
    profile = read_profile(_DUMP.splitlines(keepends=True))

    assert (profile.instructions, profile.system_calls) == (1000, 2)
    assert profile.functions["CPyDef_leg___Leg___end"] == Function(inclusive=900, own=300, calls=3)
    assert profile.functions["dict_lookup"] == Function(inclusive=600, own=590, calls=31)  # its own recursion once
    assert profile.functions["_PyEval_EvalFrameDefault"] == Function(inclusive=100, own=100, calls=0)  # nobody calls it


def test_the_cost_of_a_request_is_a_difference() -> None:
    longer = read_profile(_DUMP.replace("totals: 1000 2 7", "totals: 5000 12 7").splitlines(keepends=True))
    shorter = read_profile(_DUMP.splitlines(keepends=True))

    each = longer.per_request(shorter, 10)

    assert (each.instructions, each.system_calls) == (400, 1)
    assert each.functions["dict_lookup"] == Function(0, 0, 0)


def test_a_dump_without_totals_is_refused() -> None:
    with pytest.raises(ValueError, match="no totals"):
        read_profile(["fn=(1) main\n", "0 5\n"])


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("CPyDef_leg___Leg___end", "leg.Leg.end"),
        ("CPyDef_admission____reserve", "admission._reserve"),
        ("CPyDef_attempts___run_Attempts_gen_____mypyc_generator_helper__", "attempts.Attempts.run"),
        ("CPyDef_attempts____wait_Attempts_gen_____mypyc_generator_helper__", "attempts.Attempts._wait"),
        ("CPyDef_pull___hand_off_gen_____mypyc_generator_helper__", "pull.hand_off"),
        ("json_skip_string", "json_skip_string"),
    ],
)
def test_compiled_functions_have_their_python_names(name: str, shown: str) -> None:
    assert readable(name) == shown
    assert is_own(name) is (shown != name)
