"""Legs in flight of several workers, counted in shared memory."""

import os
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_api.names import Role
from pdx_proxy.balancing.shared_load import LoadTable, SharedLoad
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import NO_SLOT, Endpoint


def endpoint(port: int, slot: int) -> Endpoint:
    return Endpoint(EndpointSpec(Address("h", port), Role.DECODE), slot=slot)


def workers(table: LoadTable, count: int) -> list[SharedLoad]:
    return [SharedLoad.over(os.dup(table.fd), number, count) for number in range(count)]


@pytest.fixture
def table() -> Iterator[LoadTable]:
    made = LoadTable(3, slots=4)
    yield made
    made.close()


STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30)


@given(STEPS, st.randoms())
def test_every_worker_sees_the_sum(steps: list[tuple[int, int]], random: Random) -> None:
    table = LoadTable(3, slots=4)
    try:
        loads = workers(table, 3)
        endpoints = [endpoint(port, table.give(f"h:{port}")) for port in range(4)]
        held: list[tuple[int, int]] = []
        for worker, port in steps:
            if held and random.random() < 0.4:
                who, where = held.pop(random.randrange(len(held)))
                loads[who].release(endpoints[where])
            loads[worker].acquire(endpoints[port])
            held.append((worker, port))
            for number, each in enumerate(endpoints):
                count = [where for _, where in held].count(number)
                assert [load.of(each) for load in loads] == [count] * 3
                assert table.legs(each.slot) == count
        for number, load in enumerate(loads):
            own = [where for who, where in held if who == number]
            assert load.view() == {f"h:{port}": own.count(port) for port in own}, "a report holds its own"
    finally:
        table.close()


def test_a_limit_holds_for_all_workers_together(table: LoadTable) -> None:
    first, second = workers(table, 2)
    where = endpoint(1, table.give("h:1"))
    first.limits = second.limits = {where.name: 4}
    for load in (first, first, first, second):
        assert not load.full(where)
        load.acquire(where)
    assert first.full(where)
    assert second.full(where)
    woken: list[int] = []
    second.on_release = lambda: woken.append(1)
    second.release(where)
    assert woken == [1], "the fourth of all workers, and the first of this one"


def test_legs_by_their_state(table: LoadTable) -> None:
    """Every worker sees the sum, and reports its own."""
    one, beyond = endpoint(1, table.give("h:1")), endpoint(2, NO_SLOT)
    loads = workers(table, 3)
    for load in (*loads, loads[0]):
        for each in (one, beyond):
            load.acquire(each)
            load.begin_prefill(each)
    loads[1].block(one)
    loads[1].block(beyond)
    assert [states(load, one) for load in loads] == [(4, 4, 1)] * 3
    assert [states(load, beyond) for load in loads] == [(2, 2, 0), (1, 1, 1), (1, 1, 0)]
    assert table.legs(one.slot) == 4
    loads[0].end_prefill(one)
    loads[1].end_prefill(one)
    loads[1].unblock(one)
    loads[0].block(one)
    assert states(loads[2], one) == (4, 2, 1)
    assert [dict(load.at_prefill) for load in loads] == [{"h:1": 1, "h:2": 2}, {"h:2": 1}, {"h:1": 1, "h:2": 1}]
    assert [dict(load.blocked) for load in loads] == [{"h:1": 1}, {"h:2": 1}, {}]
    table.forget(0)
    assert states(loads[2], one) == (2, 1, 0)


def states(load: SharedLoad, where: Endpoint) -> tuple[int, int, int]:
    legs = load.legs_at(where)
    return legs.count, legs.prefilling, legs.blocked


def test_a_dead_worker_counts_nothing(table: LoadTable) -> None:
    one, two = endpoint(1, table.give("h:1")), endpoint(2, table.give("h:2"))
    loads = workers(table, 3)
    for load in loads:
        load.acquire(one)
        load.acquire(two)
    table.forget(1)
    assert [table.legs(e.slot) for e in (one, two)] == [2, 2]
    again = SharedLoad.over(os.dup(table.fd), 1, 3)
    again.acquire(two)
    assert (loads[0].of(one), loads[0].of(two)) == (2, 3)


def test_a_slot_is_given_again_when_nothing_is_counted_there(table: LoadTable) -> None:
    slots = [table.give(name) for name in "abcd"]
    assert sorted(slots) == [0, 1, 2, 3]
    assert table.give("a") == slots[0], "once for each name"
    assert table.give("e") == NO_SLOT
    load = workers(table, 3)[2]
    leaving = endpoint(1, slots[1])
    load.acquire(leaving)
    table.take_back("b")
    assert table.give("e") == NO_SLOT, "a leg is still open there"
    load.release(leaving)
    assert table.give("e") == slots[1]
    table.take_back("nobody")


def test_without_a_slot_a_worker_counts_for_itself(table: LoadTable) -> None:
    first, second, _ = workers(table, 3)
    more = endpoint(9, NO_SLOT)
    first.acquire(more)
    assert (first.of(more), second.of(more)) == (1, 0)
    first.release(more)
    assert first.of(more) == 0
    assert [table.legs(slot) for slot in range(4)] == [0] * 4
