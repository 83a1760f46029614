"""What requests hold, of one worker and of several that share memory."""

import os
from collections.abc import Iterator

import pytest

from pdx_proxy.admission.usage import ROWS, WAITING_ROW, SharedUsage, Usage
from pdx_proxy.balancing.shared_load import LoadTable, SharedLoad


@pytest.fixture
def table() -> Iterator[LoadTable]:
    made = LoadTable(2, slots=4, rows=ROWS)
    yield made
    made.close()


def workers(table: LoadTable) -> list[SharedUsage]:
    loads = [SharedLoad.over(os.dup(table.fd), number, 2, ROWS) for number in range(2)]
    return [SharedUsage(load.rows, number, 2) for number, load in enumerate(loads)]


def test_two_workers_count_together(table: LoadTable) -> None:
    one, two = workers(table)
    one.set_waiting(3, 1)
    two.set_waiting(4, 2)
    one.add_buffered(100)
    two.add_buffered(50)
    two.add_buffered(-20)
    assert [each.all_waiting() for each in (one, two)] == [7, 7]
    assert [each.all_buffered() for each in (one, two)] == [130, 130]
    assert (one.waiting, two.buffered) == (3, 30)
    assert table.total(WAITING_ROW) == 7
    table.forget(1)
    assert (one.all_waiting(), one.all_buffered()) == (3, 100)


def test_a_client_is_counted_at_all_workers(table: LoadTable) -> None:
    one, two = workers(table)
    for number in range(50):
        one.add_open(f"client {number}", 1)
    one.add_open("me", 2)
    two.add_open("me", 3)
    assert [each.open_of("me") for each in (one, two)] == [5, 5]
    assert two.open_of("nobody") == 0
    two.add_open("me", -3)
    assert one.open_of("me") == 2


def test_workers_share_room_by_their_clients(table: LoadTable) -> None:
    one, two = workers(table)
    one.set_waiting(5, 1)
    assert one.may_take(), "nobody else waits"
    two.set_waiting(5, 3)
    one.add_in_flight(2)
    two.add_in_flight(5)
    assert (one.may_take(), two.may_take()) == (False, True)
    two.add_in_flight(2)
    assert (one.may_take(), two.may_take()) == (True, False)


def test_one_worker_has_all() -> None:
    usage = Usage()
    usage.set_waiting(3, 1)
    usage.add_buffered(7)
    usage.add_open("me", 1)
    assert (usage.all_waiting(), usage.all_buffered(), usage.open_of("me"), usage.may_take()) == (3, 7, 1, True)
    usage.add_open("me", -1)
    assert not usage._open
