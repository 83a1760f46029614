"""Admission: what is shed, the order of the queue, and that every permit is released once."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pdx_proxy.admission.admission import SMALL_BODY_BYTES, Admission, ShedError, Waiter
from pdx_proxy.admission.permit import Permit
from pdx_proxy.admission.usage import Usage
from pdx_proxy.config.settings import Limits
from pdx_proxy.telemetry.counters import Counters, Phase, ShedReason


class FakeExchange:
    """The part of an exchange that admission uses."""

    def __init__(self, size: int | None = 0, peer: str = "a", headers: Mapping[str, str] | None = None) -> None:
        self.size = size
        self.peer = peer
        self.headers = headers or {}
        self.count: Callable[[int], None] | None = None

    def count_body(self, count: Callable[[int], None]) -> None:
        self.count = count


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Engines:
    """Engines with a number of slots."""

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.on_release: Callable[[], None] | None = None

    def release(self) -> None:
        self.free += 1
        if self.on_release is not None:
            self.on_release()


class FakeWaiter(Waiter):
    """A request that needs one slot."""

    def __init__(self, permit: Permit, engines: Engines) -> None:
        super().__init__(permit)
        self.engines = engines

    def reserve(self) -> bool:
        if self.engines.free <= 0:
            return False
        self.engines.free -= 1
        return True

    def give_up(self) -> None:
        self.engines.release()


class Setup:
    """An admission, its engines and its clock."""

    def __init__(self, slots: int = 1, **limits: Any) -> None:
        self.clock = Clock()
        self.engines = Engines(slots)
        self.counters = Counters()
        self.admission = Admission(Limits(**limits), Usage(), self.engines, self.counters, self.clock)
        self.usage = self.admission.usage

    def acquire(
        self,
        size: int | None = 0,
        peer: str = "a",
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Permit:
        exchange: Any = FakeExchange(size, peer, headers)
        permit = self.admission.acquire(exchange, name)
        if size:
            exchange.count(size)
        return permit

    async def admit(self, permit: Permit, *, narrow: bool = False) -> None:
        """Take a slot, in the way of the attempts."""
        if not self.usage.all_waiting() and self.engines.free > 0:
            self.engines.free -= 1
            permit.serve()
            return
        await self.admission.wait(FakeWaiter(permit, self.engines), narrow=narrow)

    def end(self, permit: Permit, seconds: float = 0.0) -> None:
        self.engines.release()
        permit.release(seconds)

    def check_idle(self, slots: int) -> None:
        assert (self.usage.in_flight, self.usage.waiting, self.usage.buffered) == (0, 0, 0)
        assert self.engines.free == slots
        assert not self.usage._open
        assert not self.admission._queue
        assert self.engines.on_release is None, "an uncontended leg calls nothing"
        assert self.counters.queued == 0


async def test_clients_are_served_in_fair_order() -> None:
    """Client a has many requests in the queue; each of b's waits for one slot at most."""
    setup = Setup(max_requests=50)
    first = setup.acquire()
    await setup.admit(first)
    order: list[str] = []

    async def one(peer: str) -> None:
        permit = setup.acquire(peer=peer)
        await setup.admit(permit)
        order.append(peer)
        setup.end(permit)

    tasks = [asyncio.create_task(one("a")) for _ in range(6)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(one("b")))
    await asyncio.sleep(0)
    setup.end(first)
    await asyncio.gather(*tasks)
    assert order.index("b") <= 1
    assert len(order) == 7
    setup.check_idle(1)


async def test_weights_and_addresses_behind_proxies_make_clients() -> None:
    setup = Setup(slots=0, trusted_proxies=("10.0.0.0/8",), max_requests=50)
    setup.admission.set_weights({"heavy": 2})
    order: list[str] = []

    async def one(label: str, **client: Any) -> None:
        permit = setup.acquire(**client)
        await setup.admit(permit)
        order.append(label)
        permit.release()

    clients: list[tuple[str, dict[str, Any]]] = [
        ("heavy", {"name": "heavy"}),
        ("proxied", {"peer": "10.0.0.1", "headers": {"x-forwarded-for": "1.2.3.4"}}),
        ("other", {"peer": "10.0.0.1", "headers": {"x-forwarded-for": "1.2.3.5"}}),
    ]
    tasks = [asyncio.create_task(one(label, **client)) for label, client in clients for _ in range(8)]
    await asyncio.sleep(0)
    for _ in range(12):
        setup.engines.release()
        await asyncio.sleep(0)
    assert [order.count(label) for label, _ in clients] == [6, 3, 3]
    for _ in range(12):
        setup.engines.release()
    await asyncio.gather(*tasks)


async def test_a_full_queue_sheds_the_client_with_the_most_requests() -> None:
    setup = Setup(slots=0, max_requests=3)
    tasks = [asyncio.create_task(setup.admit(setup.acquire(peer="a"))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(ShedError, match="queue is full"):
        setup.acquire(peer="a")
    other = asyncio.create_task(setup.admit(setup.acquire(peer="b")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [task.done() for task in (*tasks, other)] == [False, False, True, False]
    with pytest.raises(ShedError, match="queue is full"):
        await tasks[2]
    assert setup.usage.waiting == 3
    for task in (*tasks[:2], other):
        task.cancel()
    await asyncio.gather(*tasks, other, return_exceptions=True)


async def test_no_request_waits_without_a_queue() -> None:
    setup = Setup(slots=0, max_requests=0)
    with pytest.raises(ShedError, match="queue is full"):
        await setup.admit(setup.acquire())


async def test_a_wait_that_is_too_long_is_shed() -> None:
    setup = Setup(max_wait_seconds=0.01)
    first, second = setup.acquire(5), setup.acquire(7)
    await setup.admit(first)
    with pytest.raises(ShedError) as shed:
        await setup.admit(second)
    second.release()
    assert (shed.value.status, shed.value.reason) == (503, ShedReason.QUEUE_TIMEOUT)
    assert (setup.usage.in_flight, setup.usage.waiting, setup.usage.buffered) == (1, 0, 5)
    assert sum(setup.counters.phases[Phase.QUEUE].counts) == 1
    setup.end(first)
    setup.check_idle(1)


async def test_bytes_count_as_they_arrive() -> None:
    setup = Setup(max_buffered_bytes=100)
    exchange: Any = FakeExchange(90)
    growing = setup.admission.acquire(exchange, None)
    assert setup.usage.buffered == 0, "a length that is declared holds nothing"
    other = setup.acquire(50)
    exchange.count(50)
    with pytest.raises(ShedError) as shed:
        exchange.count(11)
    assert shed.value.reason is ShedReason.BYTES
    with pytest.raises(ShedError):
        setup.acquire(1)
    other.release()
    exchange.count(1000)  # alone: bounded by the largest body
    growing.release()
    setup.check_idle(1)


async def test_large_bodies_leave_bytes_to_small_ones() -> None:
    """However many clients send large bodies slowly, a small request is served."""
    most = 16 * SMALL_BODY_BYTES
    setup = Setup(max_buffered_bytes=most)
    exchanges: list[Any] = [FakeExchange(most // 2) for _ in range(3)]
    permits = [setup.admission.acquire(exchange, None) for exchange in exchanges]
    for exchange in exchanges[:2]:
        exchange.count(most // 2 - SMALL_BODY_BYTES // 2)
    assert setup.usage.buffered == most - SMALL_BODY_BYTES
    exchanges[2].count(1000)
    with pytest.raises(ShedError) as shed:
        exchanges[0].count(1)
    assert shed.value.reason is ShedReason.BYTES
    with pytest.raises(ShedError):
        setup.acquire(SMALL_BODY_BYTES + 1)
    small = setup.acquire(SMALL_BODY_BYTES - 1000)
    with pytest.raises(ShedError):
        setup.acquire(1)
    for permit in (small, *permits):
        permit.release()
    setup.check_idle(1)


async def test_a_permit_is_held_until_all_is_settled() -> None:
    setup = Setup(max_requests_per_client=1)
    permit = setup.acquire(10)
    await setup.admit(permit)
    permit.hold()
    permit.hold()
    permit.drop_body()
    permit.release()  # the request itself
    with pytest.raises(ShedError):
        setup.acquire()
    permit.settled()
    assert (setup.usage.in_flight, setup.usage.buffered) == (1, 10), "a settlement may send the body again"
    permit.settled()
    setup.engines.release()
    setup.check_idle(1)


async def test_an_answer_does_not_keep_the_body_of_a_settled_attempt() -> None:
    setup = Setup()
    permit = setup.acquire(10)
    await setup.admit(permit)
    permit.hold()
    permit.drop_body()
    assert setup.usage.buffered == 10
    permit.settled()
    assert (setup.usage.in_flight, setup.usage.buffered) == (1, 0)
    setup.end(permit)
    setup.check_idle(1)


async def test_clients_differ_by_key_or_address() -> None:
    setup = Setup(max_requests_per_client=1)
    mine = setup.acquire(peer="a")
    for peer, name in (("b", None), ("a", "alice"), ("a", "bob")):
        setup.acquire(peer=peer, name=name).release()
    with pytest.raises(ShedError) as shed:
        setup.acquire(peer="a")
    assert (shed.value.status, shed.value.headers["retry-after"]) == (429, "1")
    mine.release()
    setup.acquire(peer="a").release()
    setup.check_idle(1)


async def test_what_needs_less_room_passes() -> None:
    """A request that needs no P is served while P is full."""
    setup = Setup(slots=0)

    class Wide(FakeWaiter):
        def reserve(self) -> bool:
            return False

    wide = asyncio.create_task(setup.admission.wait(Wide(setup.acquire(), setup.engines), narrow=False))
    await asyncio.sleep(0)
    narrow = setup.acquire(peer="b")
    waiting = asyncio.create_task(setup.admit(narrow, narrow=True))
    await asyncio.sleep(0)
    setup.engines.release()
    await waiting
    assert not wide.done()
    wide.cancel()


async def test_retry_after_follows_the_duration_of_requests() -> None:
    setup = Setup(slots=10, max_requests=5, max_wait_seconds=30.0)
    served: list[Permit] = []

    async def one() -> None:
        permit = setup.acquire()
        await setup.admit(permit)
        served.append(permit)

    tasks = [asyncio.create_task(one()) for _ in range(15)]
    await asyncio.sleep(0)
    for second in range(4):
        setup.clock.now = float(second + 1)
        setup.end(served.pop(0), 20.0)  # of ten that run, one ends in two seconds; a queued one takes its slot
        tasks.append(asyncio.create_task(one()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    for expected in ("12", "14"):  # five are before the first, and the first before the second
        with pytest.raises(ShedError) as shed:
            setup.acquire()
        assert shed.value.headers["retry-after"] == expected
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(5))
async def test_every_permit_is_released(seed: int) -> None:
    """Requests that end, disconnect, are cancelled, wait too long or grow, in any order."""
    rng = random.Random(seed)
    setup = Setup(3, max_requests=4, max_buffered_bytes=60, max_requests_per_client=5, max_wait_seconds=0.01)
    most = 0

    async def one(number: int) -> None:
        nonlocal most
        await asyncio.sleep(rng.random() * 0.05)
        permit = None
        try:
            permit = setup.acquire(rng.choice([None, 0, 10, 30]), rng.choice("ab"))
            await setup.admit(permit, narrow=rng.random() < 0.3)
            try:
                most = max(most, setup.usage.in_flight)
                await asyncio.sleep(rng.random() * 0.01)
                permit.drop_body()
                assert setup.engines.free <= 0 or not setup.usage.waiting
            finally:
                setup.engines.release()
        except ShedError:
            pass
        finally:
            if permit is not None:
                permit.release()
                permit.release()

    tasks = [asyncio.create_task(one(number)) for number in range(300)]
    for _ in range(60):
        await asyncio.sleep(0.001)
        rng.choice(tasks).cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    assert most <= 4, "one that has just ended has released its slot before its permit"
    setup.check_idle(3)
