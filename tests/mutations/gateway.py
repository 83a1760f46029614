"""Mutations of what all requests of a gateway share."""

from typing import Final

from tests.mutations.mutation import Mutation

_SUPERVISION: Final = "component/process/test_supervision.py::test_"
_HUNG: Final = "component/health/test_hung.py::test_"

MUTATIONS: Final = (
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
        "legs, limit = self.count(endpoint), self.limits.get(endpoint.name, inf)",
        "return False",
        "component/admission/test_limits.py::test_a_prefill_has_a_limit_of_its_own",
    ),
    Mutation(
        "every gateway takes all the room of an engine",
        "balancing/engine_limits.py",
        "change = reached / limit.load * room - legs.prefilling",
        "change = 2 * room",
        "unit/proxy/balancing/test_limits_over_time.py::"
        "test_a_decode_runs_what_it_can_and_its_queue_stays_short[64-0.02-2]",
    ),
    Mutation(
        "requests that end together raise D's rate",
        "balancing/engine_limits.py",
        "return min(self._ended / self._busy, load / self._latency) if",
        "return self._ended / self._busy if",
        "unit/proxy/balancing/test_engine_limits.py::test_requests_that_end_together_do_not_raise_the_rate",
    ),
    Mutation(
        "answers that nobody reads take room",
        "balancing/engine_limits.py",
        "unread = min(legs.blocked, max(0.0, reached - limit.load))",
        "unread = 0.0",
        "component/http/test_slow_peers.py::test_answers_that_nobody_reads_take_no_room",
    ),
    Mutation(
        "large bodies leave nothing to small ones",
        "admission/admission.py",
        "return most if size <= SMALL_BODY_BYTES else most - most // _PART_FOR_SMALL",
        "return most",
        "unit/proxy/admission/test_admission.py::test_large_bodies_leave_bytes_to_small_ones",
    ),
    Mutation(
        "attempts that do not wait go to the smallest engine",
        "balancing/chooser.py",
        "pick(snapshot, self._share_of, split=split",
        "pick(snapshot, self._load_of, split=split",
        "unit/proxy/serving/test_attempts.py::test_attempts_that_do_not_wait_are_divided_by_the_engines_limits",
    ),
    Mutation(
        "the queue uses up the whole deadline",
        "serving/attempts.py",
        "call.request.deadline += timeline.queued",
        "pass",
        "unit/proxy/serving/test_attempts.py::test_a_wait_in_the_queue_does_not_use_up_the_whole_deadline",
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
        "a push is sent to a D with a long queue",
        "balancing/pick.py",
        "d.role is _AGGREGATED or d.long_queue or",
        "d.role is _AGGREGATED or",
        f"{_HUNG}a_decode_with_a_long_queue_gets_whole_requests[Concurrent]",
    ),
    Mutation(
        "a lack of progress ejects nobody",
        "health/progress.py",
        "now - self.since >= limit",
        "False",
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
        "a worker's deadline leads to no health check",
        "process/supervisor.py",
        "if isinstance(message, EndpointEvent):",
        "if isinstance(message, EndpointEvent) and hasattr(message, 'reason'):",
        f"{_HUNG}an_engine_that_hangs_in_a_worker_process_is_ejected",
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
)
