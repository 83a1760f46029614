"""Breaks the gateway on purpose, one line at a time, and expects a test to fail: `make mutations`.

Each mutation changes a copy of the gateway's package, and the test imports the copy.
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
    """The broken line, and the test that must fail."""

    breaks: str
    file: str
    old: str
    new: str
    test: str


MUTATIONS: Final = (
    Mutation(
        "P's failure reaches the client at once",
        "serving/attempts.py",
        "if tries and failure.begun and not self._serving.may_retry():",
        "if True:",
        f"{_ROW}[prefill-500-PrefillFirst-whole-Retry]",
    ),
    Mutation(
        "Fail goes on",
        "serving/attempts.py",
        "if on_prefill_failure is PrefillFailure.FAIL:\n",
        "if False:\n",
        f"{_ROW}[prefill-500-fail-PrefillFirst-whole-Fail]",
    ),
    Mutation(
        "Local selects another P",
        "serving/attempts.py",
        "call = call.whole()\n                if tries",
        "pass\n                if tries",
        f"{_ROW}[prefill-dies-local-PrefillFirst-stream-Local]",
    ),
    Mutation(
        "P's leg is not sent again while D waits",
        "handoff/push_prefill.py",
        "_PREFILL_TRIES: Final = 2",
        "_PREFILL_TRIES: Final = 1",
        f"{_ROW}[prefill-abort-again-DecodeFirst-whole-Retry]",
    ),
    Mutation(
        "a D that failed leaves P's blocks to their lease",
        "handoff/pull.py",
        "release(settlements, pair, params, request, failure, begun=leg.sent)",
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
        "a closed idle connection is a failure",
        "engines/leg.py",
        "if not connection.used or",
        "if True or",
        f"{_ROW}[prefill-stale-PrefillFirst-whole-Retry]",
    ),
    Mutation(
        "a stream that is cut inside an event gets an end",
        "serving/relay.py",
        "if last_chunk.endswith(_EVENT_END):",
        "if True:",
        f"{_ROW}[stream-dies-in-event-DecodeFirst-stream-Retry]",
    ),
    Mutation(
        "a silent engine has no deadline",
        "http/upstream/deadline.py",
        "return self._unchanged >= _CHECKS or progress.complete",
        "return progress.complete",
        f"{_ROW}[stream-hangs-PrefillFirst-stream-Retry]",
    ),
    Mutation(
        "the whole request has no deadline",
        "http/upstream/deadline.py",
        "expires if expires < deadline else deadline",
        "expires",
        f"{_ROW}[decode-expires-Concurrent-whole-Retry]",
    ),
    Mutation(
        "an abandoned prefill goes on",
        "handoff/prefill_first_settlement.py",
        "leg.half_close()",
        "pass",
        "component/handoff/test_leaving.py::test_while_prefill_computes[PrefillFirst-text-used-connections]",
    ),
    Mutation(
        "a P that may not be stopped is stopped",
        "handoff/prefill_first_settlement.py",
        "elif _may_stop(leg.endpoint):",
        "elif True:",
        "component/handoff/test_pool.py::test_a_prefill_that_may_not_be_stopped_finishes[text]",
    ),
    Mutation(
        "a push that never comes has no deadline",
        "handoff/push_prefill.py",
        "if not self._request.stream:",
        "if True:",
        "component/process/test_watchdog.py::test_a_push_that_does_not_come_is_given_up[Concurrent]",
    ),
    Mutation(
        "a P that dies after its answer is not noticed",
        "handoff/push_prefill.py",
        "self._connection.on_lost.add(self._lose)",
        "pass",
        "component/handoff/test_endings.py::test_a_prefill_that_dies_behind_its_answer[text-DecodeFirst]",
    ),
    Mutation(
        "a large body is read without a pause",
        "serving/reader.py",
        "await asyncio.sleep(0)",
        "pass",
        "component/http/test_large_bodies.py::test_other_requests_are_answered_between_slices[served]",
    ),
    Mutation(
        "arrays and objects are not counted",
        "payload/json_scanner.py",
        "if self._brackets > MAX_BRACKETS:",
        "if False:",
        "component/http/test_large_bodies.py::test_hostile_large_bodies[fast]",
    ),
    Mutation(
        "a request that vLLM refuses is split",
        "payload/decisions.py",
        "if value is REFUSED:",
        "if False:",
        "component/http/test_large_bodies.py::test_what_vllm_refuses_goes_whole_to_one_engine",
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
        "handoff/push_transfer.py",
        "self.engines.observer.lost_handoff(self.decode)",
        "pass",
        "component/handoff/test_endings.py::test_a_prefill_that_dies_for_good_is_counted_against_its_decode[text-DecodeFirst]",
    ),
)


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
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{mutation.test}"]
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1):
        raise ValueError(f"{mutation.test}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return ended.returncode == 1


def main() -> int:
    """Try every mutation; return the number that no test noticed, as the exit code."""
    with ThreadPoolExecutor(2) as pool:
        noticed = list(pool.map(notices, MUTATIONS))
    for mutation, found in zip(MUTATIONS, noticed, strict=True):
        sys.stdout.write(f"{'noticed' if found else 'NOT NOTICED'}: {mutation.breaks} ({mutation.test})\n")
    return noticed.count(False)


if __name__ == "__main__":
    sys.exit(main())
