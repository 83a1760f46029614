"""What the campaign of vLLM's versions reads in pytest's report, and the table that it writes."""

from benchmarks.versions.__main__ import CHECKS, VERSIONS, Result, checks_of, outcome, read, table
from pdx_api.vllm.versions import TESTED
from scripts.marked import END
from scripts.vllm_versions import BEGIN, status, versions

REPORT = """<testsuites><testsuite>
<testcase classname="tests.engines.test_pull.TestApiTable" name="test_parameter[n]"/>
<testcase classname="tests.engines.test_pull" name="test_kill"><failure>no</failure></testcase>
<testcase classname="tests.engines.test_push" name="test_kill"/>
<testcase classname="tests.engines.test_push" name="test_late"><error>no</error></testcase>
<testcase classname="tests.engines.test_push" name="test_late"/>
<testcase classname="tests.engines.test_push" name="test_other"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_report() -> None:
    assert outcome(REPORT) == (2, ("test_pull: test_kill", "test_push: test_late"))


def test_the_table_names_what_failed_and_what_did_not_run() -> None:
    check = next(iter(CHECKS))
    lines = table([Result("0.30", check, 2, ("test_pull: test_kill",), "abc", "2026-11-28", 9)]).splitlines()
    rows = {line.split(" | ")[0].strip("| "): line for line in lines}
    assert [*rows][2 : 2 + len(VERSIONS)] == [*VERSIONS]
    assert rows["0.30"].startswith("| 0.30 | 2 of 3 | not run | refused | refused | not run |")
    assert rows["0.31"].count("not run") == len(CHECKS)
    assert lines[-1] == f"* 0.30, {check}: `test_pull: test_kill`"


def test_the_results_are_of_known_versions_and_checks() -> None:
    assert {(each.version, each.check) for each in read()} <= {(v, c) for v in VERSIONS for c in CHECKS}


def test_a_version_is_tested_if_real_engines_passed_every_check() -> None:
    def result(check: str, *failed: str) -> Result:
        return Result("0.31", check, 9, failed, "c0ffee", "2026-11-28", 1)

    passed = [result(check) for check in CHECKS]
    first, *rest = CHECKS
    assert status("0.31", passed) == "tested"
    assert status("0.31", passed[1:]) == "checked", "one did not run"
    assert status("0.31", [result(first, "test_a"), *map(result, rest)]) == "checked"
    assert status("0.31", [*passed, result(first, "test_a")]) == "checked", "the last run counts"
    assert status("0.31", [result(first, "test_a"), *passed]) == "tested"
    assert status("0.31", []) == "checked"
    assert status("0.30", [result(check) for check in checks_of("0.30")]) == "tested", "the rest is refused"
    assert status(TESTED, []) == "tested", "each run of PDX's tests"
    page = versions(f"before\n{BEGIN}old\n{END}after\n", [result(first, "test_a"), *map(result, rest)])
    assert page.startswith(f"before\n{BEGIN}")
    assert page.endswith(f"{END}after\n")
    assert f"| 0.31 | checked | {9 * len(CHECKS)} of {9 * len(CHECKS) + 1} |" in page
    assert "| 0.30 | checked | not run |" in page
