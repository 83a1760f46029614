"""Mutations of what happens to one request at engines."""

from typing import Final

from tests.mutations.mutation import Mutation

_SLOW: Final = "component/http/test_slow_peers.py::test_"
_EVENTS: Final = "component/http/test_event_streams.py::test_"
_ROW: Final = "component/handoff/test_failures.py::test_row"
_HUNG: Final = "component/health/test_hung.py::test_"

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
        "a request that gives its room up wakes no other",
        "serving/attempts.py",
        "self.load.on_release()  # this",
        "pass  # this",
        "unit/proxy/serving/test_attempts.py::test_a_request_that_gives_its_room_up_wakes_the_next",
    ),
    Mutation(
        "a committed stream that is cancelled looks whole",
        "serving/stream_keep_alive.py",
        "if self._committed and not self._answered:",
        "if False:",
        "component/serving/test_stream_keep_alive.py::test_shutdown_ends_a_stream_with_an_event[text-stream-1.0]",
    ),
    Mutation(
        "the fallback's connections close before their handlers end",
        "http/downstream/listener.py",
        "tasks += self._fallback.tasks",
        "pass",
        "component/serving/test_stream_keep_alive.py::test_shutdown_cuts_a_stream_over_http_1_0",
    ),
    Mutation(
        "a busy D is to free P's blocks",
        "handoff/prefill_first_settlement.py",
        "(isinstance(failure, EngineBusy) or not isinstance(failure, BadAnswer))",
        "(not isinstance(failure, BadAnswer))",
        "component/serving/test_retry_after.py::test_a_busy_decode_frees_nothing",
    ),
    Mutation(
        "an answer that breaks off ejects its engine",
        "engines/observer.py",
        "elif isinstance(failure, ClosedConnection):",
        "elif False:",
        "component/handoff/test_faults.py::test_an_answer_that_breaks_off_ejects_no_engine[PrefillFirst-die_after_head]",
    ),
    Mutation(
        "an engine that breaks off each stream stays in use",
        "engines/observer.py",
        "suspect = self._broken.failed(endpoint, failure.detail)",
        "suspect = None",
        "component/handoff/test_faults.py::test_an_engine_that_breaks_off_each_stream_is_ejected[PrefillFirst]",
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
        "a D that queues the request has lost its blocks",
        "handoff/push_transfer.py",
        "waiting.capacity > 0 or waiting.deferred == 0",
        "False",
        "component/process/test_watchdog.py::test_a_push_is_not_lost_while_decode_queues_the_request[Concurrent]",
    ),
    Mutation(
        "a prefill in chunks is no progress",
        "engines/engine_metrics.py",
        "names = (_RUNNING, _WAITING, _KV_USE, _PROMPTS, _GENERATION)",
        "names = (_RUNNING, _WAITING, _WAITING, _PROMPTS, _GENERATION)",
        f"{_HUNG}an_engine_without_progress_is_stalled_and_a_long_prefill_is_not",
    ),
    Mutation(
        "every error of a D counts against its P",
        "engines/observer.py",
        "if self._outliers.count(decode) <= 1:",
        "if True:",
        "unit/proxy/engines/test_observer.py::test_a_decode_that_fails_with_every_prefill_is_at_fault",
    ),
    Mutation(
        "a slot is taken at the head",
        "serving/gateway.py",
        "            bodies: list",
        "            self._admission.usage.in_flight += 1\n            bodies: list",
        f"{_SLOW}declared_bodies_take_nothing[fast]",
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
        "    if path == MESSAGES:\n        error =",
        "    if False:\n        error =",
        f"{_EVENTS}a_broken_stream_ends_in_its_own_shape[messages-lf]",
    ),
)
