"""Whether the queue of a decode engine is longer than a push survives."""

import pytest

from pdx_api.names import Order, Role
from pdx_api.vllm_metrics import EngineMetrics, Waiting
from pdx_proxy.config.settings import Address, Deadlines, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.health.push_queues import PushQueues, QueueSample, queue_seconds
from pdx_proxy.health.reports import Report, Round

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


@pytest.mark.parametrize(
    ("role", "order", "expected"),
    [
        (Role.DECODE, Order.CONCURRENT, [False, False, True]),
        (Role.DECODE, Order.PREFILL_FIRST, []),
        (Role.PREFILL, Order.CONCURRENT, []),
    ],
)
def test_a_queue_that_is_longer_than_a_push_survives(role: Role, order: Order, expected: list[bool]) -> None:
    engine = Endpoint(EndpointSpec(Address("d", 1), role, order=order), State.WARM, generation=1)
    queues, long = PushQueues(Deadlines().handoff_seconds), []
    for number, (waiting, ended) in enumerate([(100, 0), (100, 50), (300, 100)]):
        metrics = EngineMetrics(waiting_by_reason=Waiting(waiting, 0), ended=ended)
        report = Report(engine, metrics, 10.0 * number)
        long += queues.update(Round(report.at, Snapshot.of([engine]), latest=(report,)))
    assert long == [(engine, is_long) for is_long in expected], "25 s: 100 wait and 5 end each second; then 300 wait"
    assert queues.update(Round(30.0, Snapshot.of([engine]), latest=(Report(engine, EngineMetrics(), 30.0),))) == []
