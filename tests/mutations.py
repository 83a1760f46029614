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
_SUPERVISION: Final = "component/process/test_supervision.py::test_"
_SLOW: Final = "component/http/test_slow_peers.py::test_"
_EVENTS: Final = "component/http/test_event_streams.py::test_"
_ROW: Final = "component/handoff/test_failures.py::test_row"
_HUNG: Final = "component/health/test_hung.py::test_"


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
        "release(settlements, pair, params, call, failure, begun=leg.sent)",
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
        "endpoints have no limit",
        "balancing/load.py",
        "return self.count(endpoint) >= self.limits.get(endpoint.name, inf)",
        "return False",
        "component/admission/test_limits.py::test_a_prefill_has_a_limit_of_its_own",
    ),
    Mutation(
        "the queue is first come, first served",
        "admission/admission.py",
        "self._queue.push(waiter, self._client(exchange, name), self._weight(name), narrow=narrow)",
        'self._queue.push(waiter, "all", 1.0, narrow=narrow)',
        "component/admission/test_limits.py::test_a_client_with_one_request_does_not_wait_for_those_of_another",
    ),
    Mutation(
        "those that have waited longest come first whatever clients do",
        "admission/fair_queue.py",
        "client.newest = min(client.newest + _NEWEST_AFTER, _MOST_NEWEST)",
        "client.newest = 0",
        "component/admission/test_overload.py::test_after_a_client_gave_up_the_newest_come_first",
    ),
    Mutation(
        "a request that is settled holds nothing",
        "admission/permit.py",
        "self._settlements += 1",
        "self._settlements += 0",
        "component/admission/test_limits.py::test_a_client_that_left_holds_its_slot_until_all_is_settled",
    ),
    Mutation(
        "a declared body holds its bytes",
        "http/downstream/http1.py",
        "self._count_arrived(self.size - self._missing)",
        "self._count_arrived(self.size)",
        "component/admission/test_limits.py::test_a_body_that_does_not_come_holds_nothing",
    ),
    Mutation(
        "lost blocks of a D are not counted",
        "handoff/push_transfer.py",
        "self.engines.observer.lost_handoff(self.decode)",
        "pass",
        "component/handoff/test_endings.py::test_a_prefill_that_dies_for_good_is_counted_against_its_decode[text-DecodeFirst]",
    ),
    Mutation(
        "a deadline of a request ejects its engine",
        "engines/observer.py",
        "if isinstance(failure, DeadlineExceeded | ConnectTimeout):",
        "if False:",
        f"{_HUNG}a_deadline_of_a_request_ejects_nothing[PrefillFirst]",
    ),
    Mutation(
        "a wait in D's queue is a hand-off",
        "handoff/pull.py",
        "engines.deadlines.answer(stream=request.stream)",
        "engines.deadlines.handoff",
        f"{_HUNG}streams_wait_in_the_queue_of_an_engine",
    ),
    Mutation(
        "a hung engine keeps the requests that wait for it",
        "engines/engines.py",
        "for address in hung.keys() - self.hung:",
        "for address in ():",
        f"{_HUNG}a_hung_engine_lets_go_of_requests_that_wait",
    ),
    Mutation(
        "a push is sent to a D with a long queue",
        "balancing/pick.py",
        "d.role is _AGGREGATED or d.long_queue or",
        "d.role is _AGGREGATED or",
        f"{_HUNG}a_decode_with_a_long_queue_gets_whole_requests[Concurrent]",
    ),
    Mutation(
        "a D that queues the request has lost its blocks",
        "handoff/push_transfer.py",
        "waiting.capacity > 0 or waiting.deferred == 0",
        "False",
        "component/process/test_watchdog.py::test_a_push_is_not_lost_while_decode_queues_the_request[Concurrent]",
    ),
    Mutation(
        "a lack of progress ejects nobody",
        "health/progress.py",
        "now - self.since >= limit",
        "False",
        f"{_HUNG}an_engine_without_progress_is_stalled_and_a_long_prefill_is_not",
    ),
    Mutation(
        "a prefill in chunks is no progress",
        "engines/engine_metrics.py",
        "names = (_RUNNING, _WAITING, _KV_USE, _PROMPTS, _GENERATION)",
        "names = (_RUNNING, _WAITING, _WAITING, _PROMPTS, _GENERATION)",
        f"{_HUNG}an_engine_without_progress_is_stalled_and_a_long_prefill_is_not",
    ),
    Mutation(
        "inference ejects a whole role",
        "health/ejection.py",
        "if inference and not _may_infer(endpoint, everything):",
        "if False:",
        "unit/proxy/health/test_ejection.py::test_over_any_sequence_inference_is_bounded",
    ),
    Mutation(
        "every error of a D counts against its P",
        "engines/observer.py",
        "if self._outliers.count(decode) <= 1:",
        "if True:",
        "unit/proxy/engines/test_observer.py::test_a_decode_that_fails_with_every_prefill_is_at_fault",
    ),
    Mutation(
        "a stopped worker is kept",
        "process/liveness.py",
        '_STOPPED: Final = "Tt"',
        '_STOPPED: Final = "!"',
        f"{_SUPERVISION}a_stopped_worker_is_replaced",
    ),
    Mutation(
        "a worker that spins is kept",
        "process/liveness.py",
        "if self.total >= limits.silent and self.cpu >= limits.cpu:",
        "if False:",
        f"{_SUPERVISION}a_worker_that_spins_is_replaced",
    ),
    Mutation(
        "a gateway without workers is ready",
        "process/admin.py",
        "if not serving:",
        "if False:",
        f"{_SUPERVISION}all_workers_dead_and_no_start_succeeds",
    ),
    Mutation(
        "a start that fails is the last one",
        "process/supervisor.py",
        "except Exception as error:  # whatever it is",
        "except ZeroDivisionError as error:  # whatever it is",
        f"{_SUPERVISION}an_error_of_any_kind_starts_the_worker_again",
    ),
    Mutation(
        "the accept queue is reset at the end",
        "http/downstream/listener.py",
        "lambda: not has_backlog(sock),",
        "lambda: True,",
        f"{_SUPERVISION}connections_in_the_backlog_are_served",
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
        "            bodies: list",
        "            self._admission.usage.in_flight += 1\n            bodies: list",
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
