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
_SLOW: Final = "component/http/test_slow_peers.py::test_"
_EVENTS: Final = "component/http/test_event_streams.py::test_"
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
    Mutation(
        "a client that accepts nothing stays",
        "http/downstream/transport.py",
        "if left or progress.stalled_seconds(waiting, accepted, now) >= send_seconds:",
        "if left:",
        f"{_SLOW}a_client_that_reads_nothing_is_cut[stream-fast]",
    ),
    Mutation(
        "a connection that closes waits for its client",
        "http/downstream/transport.py",
        "    cut(transport)\n        return False",
        "    transport.close()\n        return False",
        f"{_SLOW}a_client_that_reads_nothing_is_cut[closing-fast]",
    ),
    Mutation(
        "aiohttp's clients are not inspected",
        "http/downstream/listener.py",
        "self._fallback.sweep(now, self.send_seconds)",
        "pass",
        f"{_SLOW}a_client_that_reads_nothing_is_cut[whole-fallback]",
    ),
    Mutation(
        "a client is not seen to leave while it is not read",
        "http/downstream/transport.py",
        "left = closed and not",
        "left = False and not",
        f"{_SLOW}a_pipelining_client_that_leaves_is_noticed[fast]",
    ),
    Mutation(
        "a slot is taken at the head",
        "serving/gateway.py",
        "            bodies = [",
        "            self._admission.usage.in_flight += 1\n            bodies = [",
        f"{_SLOW}declared_bodies_take_nothing[fast]",
    ),
    Mutation(
        "the process ends before the last bytes are sent",
        "http/downstream/listener.py",
        "while transports and self._loop.time() < ends:",
        "while False:",
        f"{_SLOW}the_last_bytes_are_sent_before_the_process_ends[fast]",
    ),
    Mutation(
        "a host that vanishes is not noticed",
        "http/tcp.py",
        "sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))",
        "pass",
        f"{_SLOW}the_kernel_notices_peers_that_vanish",
    ),
    Mutation(
        "a comment is a first event",
        "payload/first_event.py",
        "if not event or name in _ANNOUNCEMENTS:",
        "if name in _ANNOUNCEMENTS:",
        f"{_EVENTS}what_proves_nothing_is_followed_by_another_attempt[comments]",
    ),
    Mutation(
        "an announcement is a first event",
        "payload/first_event.py",
        "if not event or name in _ANNOUNCEMENTS:",
        "if not event:",
        f"{_EVENTS}what_proves_nothing_is_followed_by_another_attempt[response-created]",
    ),
    Mutation(
        "lines that end in CR LF have no events",
        "payload/first_event.py",
        "    if crlf >= 0:",
        "    if False:",
        f"{_EVENTS}crlf_streams_are_relayed_as_they_come[1]",
    ),
    Mutation(
        "a held error has no bound",
        "payload/first_event.py",
        "if not answer.complete and answer.size <= _BUFFERED_BYTES:",
        "if not answer.complete:",
        f"{_EVENTS}an_answer_without_an_end_is_bounded[status-500]",
    ),
    Mutation(
        "an event has no bound",
        "payload/first_event.py",
        "return _is_stream_open(endpoint, answer) or answer.complete or answer.size > _BUFFERED_BYTES",
        "return _is_stream_open(endpoint, answer) or answer.complete",
        f"{_EVENTS}a_long_event_is_relayed_before_its_end",
    ),
    Mutation(
        "a head has no bound",
        "http/upstream/connection.py",
        "if self._head_bytes > _MAX_HEAD_BYTES:",
        "if False:",
        f"{_EVENTS}an_answer_without_an_end_is_bounded[head]",
    ),
    Mutation(
        "P's answer has no bound",
        "engines/leg.py",
        "if connection.answer.size > _WHOLE_BYTES:",
        "if False:",
        "unit/proxy/engines/test_leg.py::test_a_whole_answer_is_bounded",
    ),
    Mutation(
        "every stream ends like a completion",
        "serving/stream_end.py",
        "if path == _MESSAGES:",
        "if False:",
        f"{_EVENTS}a_broken_stream_ends_in_its_own_shape[messages-lf]",
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
