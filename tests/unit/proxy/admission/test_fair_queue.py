"""Fair queueing: order, shares by weight, and requests that need less than others."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pdx_proxy.admission.fair_queue import FairQueue

CLIENTS = "abcd"
Entry = tuple[str, int]


def any_fits(_: Entry) -> bool:
    return True


def drained(queue: FairQueue[Entry]) -> list[Entry]:
    found: list[Entry] = []
    while (item := queue.pop(any_fits)) is not None:
        found.append(item)
    return found


def test_a_client_that_comes_late_is_next() -> None:
    queue: FairQueue[Entry] = FairQueue()
    for number in range(100):
        queue.push(("a", number), "a", 1)
    served = [queue.pop(any_fits) for _ in range(50)]
    assert served == [("a", number) for number in range(50)]
    queue.push(("b", 0), "b", 1)
    assert queue.pop(any_fits) == ("b", 0)
    queue.push(("b", 1), "b", 1)  # one request at a time: it never waits for more than one of the others
    assert [queue.pop(any_fits) for _ in range(2)] in ([("a", 50), ("b", 1)], [("b", 1), ("a", 50)])


@given(st.lists(st.sampled_from(CLIENTS), min_size=1, max_size=60))
def test_each_client_is_served_in_its_order_and_once(pushes: list[str]) -> None:
    queue: FairQueue[Entry] = FairQueue()
    for number, client in enumerate(pushes):
        queue.push((client, number), client, 1)
    assert len(queue) == len(pushes)
    assert queue.clients == len(set(pushes))
    found = drained(queue)
    assert sorted(found) == sorted((client, number) for number, client in enumerate(pushes))
    for client in CLIENTS:
        own = [number for name, number in found if name == client]
        assert own == sorted(own)
    assert (len(queue), queue.clients) == (0, 0)


@given(
    st.dictionaries(st.sampled_from(CLIENTS), st.integers(1, 9), min_size=2),
    st.lists(st.tuples(st.sampled_from(CLIENTS), st.booleans()), max_size=60),
)
def test_shares_follow_weights_while_all_have_requests(weights: dict[str, int], before: list[tuple[str, bool]]) -> None:
    """From any state: between two backlogged clients the services by weight differ by one request of each at most."""
    queue: FairQueue[Entry] = FairQueue()
    for number, (client, pops) in enumerate(before):
        queue.push((client, -number - 1), client, weights.get(client, 1))
        if pops:
            queue.pop(any_fits)
    for client, weight in weights.items():
        for number in range(200):
            queue.push((client, number), client, weight)
    served: Counter[str] = Counter()
    for _ in range(100):
        item = queue.pop(any_fits)
        assert item is not None
        served[item[0]] += 1
        for one in weights:
            for other in weights:
                lead = served[one] / weights[one] - served[other] / weights[other]
                assert lead <= 1 / weights[one] + 1 / weights[other] + 1e-9


@given(st.lists(st.tuples(st.sampled_from(CLIENTS), st.booleans(), st.booleans()), max_size=40), st.booleans())
def test_what_needs_less_is_not_blocked(pushes: list[tuple[str, bool, bool]], room_for_wide: bool) -> None:
    """pop returns a request if one fits, whatever else is in the queue, and tries few that do not fit."""
    queue: FairQueue[tuple[str, int, bool]] = FairQueue()
    for number, (client, narrow, _) in enumerate(pushes):
        queue.push((client, number, narrow), client, 1, narrow=narrow)
    for number, (client, narrow, leaves) in enumerate(pushes):
        if leaves:
            queue.remove((client, number, narrow))
    left = [(client, number, narrow) for number, (client, narrow, leaves) in enumerate(pushes) if not leaves]
    tried: list[tuple[str, int, bool]] = []

    def fits(item: tuple[str, int, bool]) -> bool:
        tried.append(item)
        return room_for_wide or item[2]

    while left:
        tried.clear()
        found = queue.pop(fits)
        assert (found is None) == (not any(room_for_wide or narrow for _, _, narrow in left))
        assert len(tried) <= 2
        if found is None:
            break
        left.remove(found)
    assert len(queue) == len(left)


def test_a_narrow_request_without_room_stops_all() -> None:
    queue: FairQueue[Entry] = FairQueue()
    for client in CLIENTS:
        for number in range(3):
            queue.push((client, number), client, 1, narrow=bool(number))
    tried: list[Entry] = []

    def fits(item: Entry) -> bool:
        tried.append(item)
        return False

    assert queue.pop(fits) is None
    assert len(tried) == 2
    assert drained(queue)[:4] == [(client, 0) for client in CLIENTS], "the order is the same as before"


def test_a_full_queue_makes_room_for_a_client_with_fewer_requests() -> None:
    queue: FairQueue[Entry] = FairQueue()
    assert queue.crowded_out("a", 1) is None
    for number in range(4):
        queue.push(("a", number), "a", 1)
    queue.push(("b", 0), "b", 1)
    assert queue.crowded_out("a", 1) is None, "the client with the most requests crowds out nobody"
    assert queue.crowded_out("c", 1) == ("a", 3), "the newest request of the client with the most"
    assert queue.crowded_out("b", 1) == ("a", 3)
    queue.push(("b", 1), "b", 1)
    queue.push(("b", 2), "b", 1)
    assert queue.crowded_out("b", 1) is None, "as many each"
    assert queue.crowded_out("b", 2) == ("a", 3), "but its weight is higher"


def test_an_idle_queue_keeps_nothing() -> None:
    queue: FairQueue[Entry] = FairQueue()
    for round_ in range(3):
        for number in range(500):
            queue.push((f"client {number}", round_), f"client {number}", 1)
        drained(queue)
        assert not queue._clients
        assert not queue._heap
    queue.push(("a", 0), "a", 1)
    for number in range(1000):
        queue.push(("b", number), "b", 1)
        queue.remove(("b", number))
    assert len(queue._heap) < 200
    assert len(queue._clients) <= 100


def test_after_requests_that_give_up_the_newest_come_first_and_now_and_then_the_oldest() -> None:
    queue: FairQueue[Entry] = FairQueue()
    for number in range(40):
        queue.push(("a", number), "a", 1)
    assert [queue.pop(any_fits) for _ in range(2)] == [("a", 0), ("a", 1)]
    queue.remove(("a", 2), given_up=True)
    found = drained(queue)
    assert found[:10] == [*(("a", number) for number in range(39, 30, -1)), ("a", 3)]
    assert found[16:] == [("a", number) for number in range(4, 25)], "all have patience again"


def test_requests_that_are_removed_otherwise_change_no_order() -> None:
    queue: FairQueue[Entry] = FairQueue()
    for number in range(4):
        queue.push(("a", number), "a", 1)
    queue.remove(("a", 1))
    assert drained(queue) == [("a", 0), ("a", 2), ("a", 3)]
