"""Breaks the gateway on purpose, a line at a time, and expects a row of docs/failures.md to notice: `make mutations`.

Each mutation is made in a copy of the gateway's package, which the row's test then imports.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "proxy/pdx_proxy"
_ROW: Final = "component/handoff/test_failures.py::test_row"


@dataclass(frozen=True, slots=True)
class Mutation:
    """What is broken, and the test that has to fail for it."""

    breaks: str
    file: str
    old: str
    new: str
    test: str


MUTATIONS: Final = (
    Mutation(
        "P's failure is told at once",
        "serving/gateway.py",
        "if tries and failure.begun and not self._serving.may_retry():",
        "if True:",
        f"{_ROW}[prefill-500-PrefillFirst-whole-Retry]",
    ),
    Mutation(
        "Fail goes on",
        "serving/gateway.py",
        "if retries.on_prefill_failure is PrefillFailure.FAIL:\n",
        "if False:\n",
        f"{_ROW}[prefill-500-fail-PrefillFirst-whole-Fail]",
    ),
    Mutation(
        "Local asks another P",
        "serving/gateway.py",
        "request = request.whole()\n                if tries",
        "pass\n                if tries",
        f"{_ROW}[prefill-dies-local-PrefillFirst-stream-Local]",
    ),
    Mutation(
        "a P is not asked again while D waits",
        "handoff/push.py",
        "_PREFILL_TRIES: Final = 2",
        "_PREFILL_TRIES: Final = 1",
        f"{_ROW}[prefill-abort-again-DecodeFirst-whole-Retry]",
    ),
    Mutation(
        "a D that failed leaves P's blocks to their lease",
        "handoff/pull.py",
        "settlements.release(pair, params, request, failure, begun=leg.begun)",
        "pass",
        f"{_ROW}[decode-503-PrefillFirst-whole-Retry]",
    ),
    Mutation(
        "an error event is an answer",
        "payload/first_event.py",
        "if event.find(b'\"error\"') >= 0:",
        "if False:",
        f"{_ROW}[decode-load-fails-event-Concurrent-stream-Retry]",
    ),
    Mutation(
        "a kept connection that was closed is a failure",
        "engines/leg.py",
        "if not connection.used or",
        "if True or",
        f"{_ROW}[prefill-stale-PrefillFirst-whole-Retry]",
    ),
    Mutation(
        "a stream that is cut inside an event gets an end",
        "serving/relay.py",
        "if last.endswith(_EVENT_END):",
        "if True:",
        f"{_ROW}[stream-dies-in-event-DecodeFirst-stream-Retry]",
    ),
    Mutation(
        "a silent engine is waited for",
        "http/upstream/deadline.py",
        "return self._quiet >= _LOOKS or awaited.complete",
        "return awaited.complete",
        f"{_ROW}[stream-hangs-PrefillFirst-stream-Retry]",
    ),
    Mutation(
        "the whole request's deadline is none",
        "http/upstream/deadline.py",
        "expires if expires < until else until",
        "expires",
        f"{_ROW}[decode-expires-Concurrent-whole-Retry]",
    ),
    Mutation(
        "a prefill for nobody goes on",
        "handoff/settlement.py",
        "leg.half_close()",
        "pass",
        "component/handoff/test_leaving.py::test_while_prefill_computes[PrefillFirst-text-used-connections]",
    ),
    Mutation(
        "a P that may not be stopped is stopped",
        "handoff/settlement.py",
        "elif _stops(leg.endpoint):",
        "elif True:",
        "component/handoff/test_pool.py::test_a_prefill_that_may_not_be_stopped_finishes[text]",
    ),
    Mutation(
        "a push that does not come is waited for",
        "handoff/push.py",
        "if not self._request.stream:",
        "if True:",
        "component/process/test_watchdog.py::test_a_push_that_does_not_come_is_given_up[Concurrent]",
    ),
    Mutation(
        "a P that dies behind its answer is not noticed",
        "handoff/push.py",
        "self._prefill_connection.on_lost.add(self._lose_prefill)",
        "pass",
        "component/handoff/test_endings.py::test_a_prefill_that_dies_behind_its_answer[text-DecodeFirst]",
    ),
    Mutation(
        "the budget refuses nothing",
        "admission/retry_budget.py",
        "return False",
        "return True",
        "component/admission/test_retries.py::test_failures_become_no_storm[PrefillFirst]",
    ),
    Mutation(
        "lost blocks of a D are not counted",
        "handoff/push_settlement.py",
        "self._engines.lost(self._decode)",
        "pass",
        "component/handoff/test_endings.py::test_a_prefill_that_dies_for_good_is_counted_against_its_decode[text-DecodeFirst]",
    ),
)


def notices(mutation: Mutation) -> bool:
    """Whether the test fails in the mutated gateway; raises ValueError when there is nothing to mutate."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(PACKAGE, Path(place, PACKAGE.name))
        path = Path(place, PACKAGE.name, mutation.file)
        text = path.read_text(encoding="utf-8")
        if text.count(mutation.old) != 1:
            raise ValueError(f"{mutation.file} holds {mutation.old!r} {text.count(mutation.old)} times")
        path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        paths = os.pathsep.join((place, os.environ.get("PYTHONPATH", "")))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{mutation.test}"]
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1):
        raise ValueError(f"{mutation.test}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return ended.returncode == 1


def main() -> int:
    """Try every mutation; the number that no test noticed is the process's exit code."""
    with ThreadPoolExecutor(2) as pool:
        noticed = list(pool.map(notices, MUTATIONS))
    for mutation, found in zip(MUTATIONS, noticed, strict=True):
        sys.stdout.write(f"{'noticed' if found else 'NOT NOTICED'}: {mutation.breaks} ({mutation.test})\n")
    return noticed.count(False)


if __name__ == "__main__":
    sys.exit(main())
