"""Whether an engine works on its requests: samples of its metrics -> stalled or not."""

from dataclasses import replace

import pytest

from pdx_proxy.balancing.load_reports import LoadReport
from pdx_proxy.engines.engine_metrics import Progress, Waiting, read_finished, read_progress, read_waiting
from pdx_proxy.health.progress import Observed, QueueSample, has_work, observe, queue_seconds

BUSY = Progress(running=1, waiting=0, kv_use=0.5, prompt_tokens=100, generation_tokens=20)
IDLE = replace(BUSY, running=0)
LIMIT = 30.0


def samples_of(*values: Progress) -> Observed:
    """Observe one sample every ten seconds."""
    seen: Observed | None = None
    for number, value in enumerate(values):
        seen = observe(seen, value, 10.0 * number)
    assert seen is not None
    return seen


CASES: list[tuple[str, tuple[Progress, ...], bool]] = [
    ("hung", (BUSY,) * 4, True),
    ("not for long enough", (BUSY,) * 3, False),
    ("idle", (IDLE,) * 9, False),
    ("only waiting, for a push for example", (replace(IDLE, waiting=3),) * 9, False),
    ("decoding", tuple(replace(BUSY, generation_tokens=n) for n in range(9)), False),
    ("one prompt prefilled in chunks", tuple(replace(BUSY, kv_use=n / 100) for n in range(13)), False),
    ("prompts end", tuple(replace(BUSY, prompt_tokens=n) for n in range(9)), False),
    ("it hangs after some work", (replace(BUSY, kv_use=0.1), replace(BUSY, kv_use=0.2), *(BUSY,) * 4), True),
    ("a request ends", (BUSY, BUSY, replace(BUSY, running=2), replace(BUSY, running=2)), False),
]


@pytest.mark.parametrize(("values", "stalled"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_stall(values: tuple[Progress, ...], stalled: bool) -> None:
    assert samples_of(*values).stalled(10.0 * (len(values) - 1), LIMIT) is stalled


PREFILLING = """
vllm:num_requests_running{engine="0",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0014655593551539114
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 0.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 0.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 4.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 5.0
"""


def test_a_page_of_a_prefill_in_chunks() -> None:
    """Recorded from vLLM 0.32 between two chunks of a prompt; the next page differed in the use of the cache only."""
    page = PREFILLING.encode()
    first = read_progress(page)
    second = read_progress(page.replace(b"0.0014655593551539114", b"0.0019540791402051783"))
    assert first == Progress(1.0, 0.0, 0.0014655593551539114, 0.0, 0.0)
    assert second is not None
    assert not samples_of(first, first, first, second).stalled(30.0, LIMIT)
    assert (read_waiting(page), read_finished(page)) == (Waiting(3.0, 2.0), 9.0)


def test_a_page_of_something_else() -> None:
    assert (read_progress(b"\n"), read_waiting(b"\n"), read_finished(b"\n")) == (None, None, None)
    assert read_progress(PREFILLING.replace("0.0014655593551539114", "NaN").encode()) is None


QUEUES = [
    ("no earlier sample", None, QueueSample(9, 0, 10), 0.0),
    ("no queue", QueueSample(9, 0, 0), QueueSample(0, 5, 10), 0.0),
    ("20 wait and two end each second", QueueSample(0, 100, 0), QueueSample(20, 120, 10), 10.0),
    ("nothing ends", QueueSample(1, 100, 0), QueueSample(1, 100, 10), float("inf")),
    ("it has restarted", QueueSample(1, 100, 0), QueueSample(1, 5, 10), 0.0),
]


@pytest.mark.parametrize(("before", "now", "seconds"), [q[1:] for q in QUEUES], ids=[q[0] for q in QUEUES])
def test_the_wait_in_a_queue(before: QueueSample | None, now: QueueSample, seconds: float) -> None:
    assert queue_seconds(before, now) == seconds


NOTHING, RUNS, WAITS = LoadReport(0, 0, 0.4), LoadReport(1, 0, 0.4), LoadReport(0, 1, 0.4)


@pytest.mark.parametrize(
    ("reports", "legs", "expected"),
    [
        ([], 0, False),
        ([NOTHING], 0, False),
        ([NOTHING], 1, True),
        ([], 1, True),
        ([RUNS], 0, True),
        ([WAITS], 0, True),
        ([NOTHING, RUNS], 0, True),
    ],
    ids=["no report", "none", "a leg", "a leg, no report", "runs", "waits", "a rank runs"],
)
def test_work_that_explains_silence(reports: list[LoadReport], legs: int, expected: bool) -> None:
    assert has_work(reports, legs) is expected
