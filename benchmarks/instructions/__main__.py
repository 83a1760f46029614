"""`make instructions`: count the compiled gateway's instructions, and compare them with the accepted counts."""

import argparse
import datetime
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.gateway.cache import SetupError
from benchmarks.gateway.commits import CHECKOUT, Code, code_of_checkout, code_of_commit
from benchmarks.instructions import accepted, gate
from benchmarks.instructions.accepted import Accepted, AcceptedCase, GitError, Version
from benchmarks.instructions.cases import CASES
from benchmarks.instructions.client import AnswerError
from benchmarks.instructions.count import CountError, Run, count_all
from benchmarks.instructions.environment import differences, environment
from benchmarks.instructions.gate import Counted, Verdict
from benchmarks.instructions.report import table, verdict_lines

_RUNS: Final = 3
_ACCEPT: Final = "make instructions ARGS='--accept \"WHY\"'"
_DIGESTS: Final = {case.name: case.digest for case in CASES}


@dataclass(frozen=True, slots=True)
class Base:
    """A commit that is counted too, because the accepted counts are of another environment."""

    version: Version
    code: Code


@dataclass(frozen=True, slots=True)
class Result:
    """What was counted."""

    after: Mapping[str, Counted]
    before: Mapping[str, AcceptedCase]
    """The counts to compare with, in this environment."""
    spreads: Mapping[str, float]
    """Of the base."""
    polls: float

    @property
    def verdicts(self) -> list[Verdict]:
        """Return the comparison of each case."""
        return gate.compare(self.before, self.after, self.spreads)

    @property
    def restless(self) -> list[str]:
        """Return the cases whose runs differ too much."""
        return [name for name, counted in self.after.items() if counted.spread > gate.MOST_SPREAD]


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("--runs", type=int, default=_RUNS, metavar="N", help="counts of each case (%(default)s)")
    parser.add_argument(
        "--accept",
        metavar="WHY",
        type=_reason,
        help="write the counts that have changed into accepted.json, with this reason",
    )
    parser.add_argument(
        "--checkout", type=Path, default=CHECKOUT, metavar="DIR", help="count the gateway of another checkout"
    )
    return parser.parse_args()


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Count and compare; 1 if a count is too high or cannot be made."""
    arguments, began = read_arguments(), time.monotonic()
    try:
        passes = run(arguments.checkout.resolve(), arguments.runs, arguments.accept)
    except (SetupError, CountError, AnswerError, GitError, OSError) as error:
        sys.stderr.write(f"No count of instructions: {error}\n")
        return 1
    say(f"instructions: {'passed' if passes else 'FAILED'} in {time.monotonic() - began:.0f} s")
    return 0 if passes else 1


def run(checkout: Path, times: int, why: str | None) -> bool:
    """Count, compare, and write the counts if they are to be accepted."""
    _require_valgrind()
    recorded, present, versions = accepted.read(), environment(), accepted.committed_versions()
    if recorded is None and why is None:
        raise CountError(f"{accepted.PATH.name} does not exist; run: {_ACCEPT}")
    other = differences(recorded.environment, present) if recorded is not None else []
    base = _base(versions, other) if other else None
    code = code_of_checkout(checkout)
    result = _count(code, base, recorded, times)
    if result.restless:
        names = ", ".join(result.restless)
        say(f"The runs of {names} differ by more than {gate.MOST_SPREAD:.0%}; is the machine busy? Counting once more:")
        result = _count(code, base, recorded, times)
    say("\n" + table(result.verdicts, result.after, result.polls))
    if recorded is None or why is not None:
        return _accept(recorded or Accepted(_today(), present, 0, {}), result, why or "", every=recorded is None)
    faults = [
        *gate.case_faults(recorded.cases, _DIGESTS),
        *gate.raise_faults(recorded),
        *accepted.history_faults([version.accepted for version in versions], recorded),
    ]
    for line in (*verdict_lines(result.verdicts, _ACCEPT), *faults):
        say(line)
    return all(verdict.passes for verdict in result.verdicts) and not faults


def _count(code: Code, base: Base | None, recorded: Accepted | None, times: int) -> Result:
    results = count_all([code, *([base.code] if base is not None else [])], times, say)
    after = _counted(results[0][0])
    before = recorded.cases if recorded is not None else {}
    if base is None or recorded is None:
        return Result(after, before, {}, results[0][1])
    counted = _counted(results[1][0])
    changes = recorded.changes[len(base.version.accepted.changes) :]
    before = gate.expected({name: each.case for name, each in counted.items()}, changes)
    return Result(after, before, {name: each.spread for name, each in counted.items()}, results[0][1])


def _counted(runs: Mapping[str, Sequence[Run]]) -> dict[str, Counted]:
    return {
        name: Counted(
            _DIGESTS[name],
            [run.profile for run in of_case],
            min(run.waited / run.requests for run in of_case),
        )
        for name, of_case in runs.items()
    }


def _base(versions: Sequence[Version], other: Sequence[str]) -> Base:
    """Return the commit to compare with: the one before the last change of the accepted counts. Raises CountError.

    It is not the last change itself, which may be the commit that is judged.
    """
    for line in other:
        say(line)
    if not versions:
        raise CountError("the accepted counts are of another environment, and no commit has them")
    version = versions[-2] if len(versions) > 1 else versions[-1]
    say(f"So the commit {version.commit[:7]} and its accepted counts are counted here, too.")
    return Base(version, code_of_commit(version.commit))


def _accept(recorded: Accepted, result: Result, why: str, *, every: bool) -> bool:
    """Write the counts that have changed; `every`: this is the first version.

    A count of another environment is converted: the accepted count times the ratio that was measured here.
    """
    compared = {verdict.case: verdict for verdict in result.verdicts}
    new = {}
    for name, counted in result.after.items():
        verdict = compared.get(name)
        if verdict is None:
            new[name] = counted.case
        elif verdict.differs:
            ratio = (verdict.rise + 1) * recorded.cases[name].instructions / counted.case.instructions
            new[name] = counted.case.scaled(ratio)
    amended = accepted.amended(recorded, new, _today(), why)
    if every:
        amended = Accepted(_today(), recorded.environment, round(result.polls), amended.cases)
    accepted.PATH.write_text(accepted.render(amended))
    say(f"written: {accepted.PATH.relative_to(CHECKOUT)}")
    faults = gate.raise_faults(amended)
    for fault in faults:
        say(fault)
    return not faults


def _reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("state the reason, for example 'Chats may have images.'")
    return text.strip()


def _today() -> str:
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def _require_valgrind() -> None:
    """Install valgrind if it is missing and this is root; raises CountError."""
    command = [sys.executable, "-m", "scripts.system_packages", "bench"]
    path = os.pathsep.join(filter(None, (str(CHECKOUT / "cluster"), os.environ.get("PYTHONPATH"))))
    subprocess.run(command, cwd=CHECKOUT, env={**os.environ, "PYTHONPATH": path}, check=False)
    if shutil.which("callgrind_control") is None:
        raise CountError("valgrind is not installed (Debian package valgrind)")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)  # ends the started processes
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
