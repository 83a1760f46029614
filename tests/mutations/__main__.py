"""Breaks the gateway on purpose, one line at a time, and expects a test to fail: `make mutations`.

Each mutation changes a copy of the gateway's package, and the test imports the copy.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.campaigns import recorded
from tests.mutations import MUTATIONS, Mutation, rows

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "proxy/pdx_proxy"
_MOST_SECONDS: Final = 150.0
"""More than any test takes."""


def notices(mutation: Mutation) -> bool:
    """Whether the test fails with the mutated gateway; raises ValueError unless `old` occurs exactly once."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(PACKAGE, Path(place, PACKAGE.name))
        path = Path(place, PACKAGE.name, mutation.file)
        text = path.read_text(encoding="utf-8")
        if text.count(mutation.old) != 1:
            raise ValueError(f"{mutation.file} holds {mutation.old!r} {text.count(mutation.old)} times")
        path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        paths = os.pathsep.join((place, os.environ.get("PYTHONPATH", "")))
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", f"tests/{mutation.test}"]
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        code, output = _run(command, environment)
    if code not in (0, 1):
        raise ValueError(f"{mutation.test}: {output[-4000:]}")
    return code == 1


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a test; return its exit code and output. A test that never ends has failed, and is killed."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as test:
        try:
            output, _ = test.communicate(timeout=_MOST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(test.pid, signal.SIGKILL)
            return 1, "it did not end"
    return test.returncode, output


def main(only: str = "") -> int:
    """Try the mutations whose description contains `only`; return the number that no test noticed, as the exit code.

    Without `only`, every mutant of the rows is tried, too.
    """
    chosen = [each for each in MUTATIONS if only in each.breaks]
    if not chosen:
        raise SystemExit(f"No mutation's description contains {only!r}; tests/mutations/*.toml has all (`breaks`).")
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(pool.map(_try, chosen))
    return verdicts.count(False) + (0 if only else rows.main())


def _try(mutation: Mutation) -> bool:
    """Try one and report; one whose test cannot run is not noticed, and the others still run."""
    try:
        verdict, why = notices(mutation), ""
    except ValueError as error:
        verdict, why = False, f"\n{error}"
    sys.stdout.write(f"{'noticed' if verdict else 'NOT NOTICED'}: {mutation.breaks} ({mutation.test}){why}\n")
    sys.stdout.flush()
    return verdict


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("only", nargs="?", default="", help="try only the mutations whose description contains this")
    chosen_by_user = parser.parse_args().only
    sys.exit(recorded("make mutations", partial(main, chosen_by_user), whole=not chosen_by_user))
