"""`python -m benchmarks.versions`: run PDX's tests of real engines with each version of vLLM, and write the table."""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.campaigns import recorded
from benchmarks.versions.overlay import overlay
from pdx_api.vllm.versions import TESTED, abilities

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
RESULTS: Final = HERE / "results.jsonl"
README: Final = HERE / "README.md"
BEGIN, END = "<!-- begin of the table: written by the benchmark -->", "<!-- end of the table -->"
VERSIONS: Final = ("0.28", "0.30", "0.31", TESTED)
CHECKS: Final[Mapping[str, Sequence[str]]] = {
    "`pdx up --once`": ("tests/engines/test_up.py", "-m", "soak or not soak", "-k", "tiny-cpu or nixl"),
    "API, `PrefillFirst`": ("tests/engines/test_pull.py", "-k", "not killed"),
    "API, `Concurrent`": ("tests/engines/test_push.py", "-m", "soak or not soak", "-k", "ApiTable and Concurrent"),
    "KV moves, hang-ups": ("tests/engines/test_push.py", "-k", "not ApiTable and not killed"),
    "P and D killed": ("tests/engines/test_pull.py", "tests/engines/test_push.py", "-k", "killed"),
    "request models": ("tests/unit/proxy/payload/test_answer_members.py",),
}
"""Column -> pytest's arguments."""
_PUSH: Final = ("API, `Concurrent`", "KV moves, hang-ups")


@dataclass(frozen=True, slots=True)
class Result:
    """One check with one version."""

    version: str
    check: str
    passed: int
    failed: tuple[str, ...]
    """Names of the tests."""
    commit: str
    date: str
    seconds: int


def checks_of(version: str) -> tuple[str, ...]:
    """The columns of a version. PDX refuses push orders with a version that keeps the KV that it has pushed."""
    frees = abilities(version).frees_pushed
    return tuple(each for each in CHECKS if frees or each not in _PUSH)


def main(argv: Sequence[str]) -> int:
    """Run the checks that have no result of this commit; return 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("--version", action="append", choices=VERSIONS, help="only this version; may be repeated")
    parser.add_argument("--check", action="append", choices=[*CHECKS], help="only this column; may be repeated")
    parser.add_argument("--again", action="store_true", help="also run what has a result of this commit")
    args = parser.parse_args(argv)
    whole = not (args.version or args.check)
    versions, checks = args.version or VERSIONS, args.check or [*CHECKS]

    def run() -> int:
        return _run_all(versions, checks, again=args.again)

    return recorded("python3 -m benchmarks.versions", run, whole=whole)


def _run_all(versions: Iterable[str], checks: Sequence[str], *, again: bool) -> int:
    commit = _git("rev-parse", "--short=12", "HEAD")
    results = {(each.version, each.check): each for each in read()}
    for version in versions:
        for check in [each for each in checks if each in checks_of(version)]:
            before = results.get((version, check))
            if again or before is None or before.commit != commit:
                results[version, check] = _run(version, check, commit)
                _write(results.values())
    return 1 if any(each.failed for each in results.values()) else 0


def _run(version: str, check: str, commit: str) -> Result:
    folder = [] if version == TESTED else [str(overlay(f"{version}.0", ROOT))]
    report = ROOT / ".cache" / "vllm" / f"{version}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)  # of the check before
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*folder, os.environ.get("PYTHONPATH", "")])}
    print(f"vLLM {version}, {check} …", flush=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *CHECKS[check]]
    with report.with_suffix(".log").open("wb") as log:
        subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
    passed, failed = outcome(report.read_text(encoding="utf-8"))
    seconds = round(time.monotonic() - began)
    print(f"  {passed} passed, {len(failed)} failed ({seconds} s)", *failed, sep="\n    ", flush=True)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Result(version, check, passed, failed, commit, day, seconds)


def outcome(report: str) -> tuple[int, tuple[str, ...]]:
    """The number of tests that passed, and the names of those that did not, in a report in JUnit's form."""
    cases = [each for each in ET.fromstring(report).iter("testcase") if each.find("skipped") is None]
    bad = {_name(each) for each in cases if each.find("failure") is not None or each.find("error") is not None}
    return len({_name(each) for each in cases} - bad), tuple(sorted(bad))


def _name(case: ET.Element) -> str:
    place = case.attrib["classname"].split(".")
    return f"{next((part for part in place if part.startswith('test_')), place[-1])}: {case.attrib['name']}"


def read() -> list[Result]:
    """The results of the last runs."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return [Result(**{**json.loads(line), "failed": tuple(json.loads(line)["failed"])}) for line in lines]


def _write(results: Iterable[Result]) -> None:
    still = [each for each in results if each.check in checks_of(each.version)]
    rows = sorted(still, key=lambda each: (each.version, [*CHECKS].index(each.check)))
    RESULTS.write_text("".join(f"{json.dumps(asdict(each))}\n" for each in rows), encoding="utf-8")
    page = README.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n{table(rows)}{END}{rest.split(END)[1]}", encoding="utf-8")


def table(results: Sequence[Result]) -> str:
    """Versions x checks, and the names of the tests that failed."""
    found = {(each.version, each.check): each for each in results}
    lines = [f"| vLLM | {' | '.join(CHECKS)} | commit, date |", f"|---{'|---' * (len(CHECKS) + 1)}|"]
    for version in VERSIONS:
        row = [found.get((version, check)) for check in CHECKS]
        cells = [
            _cell(each) if check in checks_of(version) else "refused" for check, each in zip(CHECKS, row, strict=True)
        ]
        last = max((each for each in row if each is not None), key=lambda each: each.date, default=None)
        lines.append(f"| {version} | {' | '.join(cells)} | {f'{last.commit}, {last.date}' if last else '–'} |")
    bad = [f"* {each.version}, {each.check}: {', '.join(f'`{name}`' for name in each.failed)}" for each in results]
    shown = [line for line, each in zip(bad, results, strict=True) if each.failed]
    return "\n".join([*lines, "", *shown]) + "\n" if shown else "\n".join(lines) + "\n"


def _cell(result: Result | None) -> str:
    if result is None:
        return "not run"
    return f"{result.passed} of {result.passed + len(result.failed)}"


def _git(*command: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *command], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
