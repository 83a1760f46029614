"""What an engine refuses at once counts as load for a while, so that it looks no emptier than engines that serve."""

from collections.abc import Iterator

import pytest

from pdx_api.names import Role
from pdx_proxy.balancing.load import REFUSED_SECONDS, Load, Room
from pdx_proxy.balancing.policies import least
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint

D1, D2, D3, OTHER = (Endpoint(EndpointSpec(Address("127.0.0.1", port), Role.DECODE)) for port in range(1, 5))
GROUP = (D1, D2, D3)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def loaded(*legs: int, workers: int = 1) -> tuple[Load, Clock]:
    """A load in which the n-th D has so many legs."""
    clock = Clock()
    load = Load(clock)
    load.workers = workers
    load.group({each.name: GROUP for each in GROUP})
    for each, count in zip(GROUP, legs, strict=False):
        for _ in range(count):
            load.acquire(each)
    return load, clock


def refuse(load: Load, endpoint: Endpoint, times: int = 1) -> None:
    for _ in range(times):
        load.acquire(endpoint)
        load.release(endpoint, refused=True)


def test_a_refused_leg_counts_on_until_legs_of_others_end() -> None:
    load, _ = loaded(0, 3, 2)
    refuse(load, D1, 2)
    assert (load.of(D1), load.count(D1)) == (2, 0)
    load.release(D2)
    assert load.of(D1) == pytest.approx(2 * (1 - 1 / 5))
    for each in (D2, D2, D3, D3):
        load.release(each)
    assert load.of(D1) == pytest.approx(0)


@pytest.mark.parametrize(("legs", "most"), [((0, 0, 0), 1), ((0, 3, 2), 4), ((0, 0, 7), 8)])
def test_it_counts_no_more_than_the_busiest_other_engine(legs: tuple[int, ...], most: float) -> None:
    load, _ = loaded(*legs)
    refuse(load, D1, 1000)
    assert load.of(D1) == most


def test_refusals_of_every_engine_leave_them_equal() -> None:
    """Requests of a client that every engine refuses do not steer the requests of others."""
    load, _ = loaded(2, 2, 2)
    for _ in range(5):
        for each in GROUP:
            refuse(load, each)
    assert len({load.of(each) for each in GROUP}) == 1


def test_with_several_workers_each_one_counts_for_all() -> None:
    load, _ = loaded(0, 8, 8, workers=4)
    refuse(load, D1)
    assert load.of(D1) == 4


def test_what_waits_is_not_for_an_engine_that_refuses_everything() -> None:
    load, clock = loaded(0, 4, 4)
    load.limit({each.name: 4.0 for each in GROUP})
    refuse(load, D1, 7)
    assert not load.full(D1)
    refuse(load, D1)
    assert load.full(D1)
    clock.now += 1.1
    assert not load.full(D1), "it is tried again"


def test_bad_requests_of_one_client_take_no_room_of_an_engine_that_serves() -> None:
    load, _ = loaded(1, 4, 4)
    load.limit({each.name: 4.0 for each in GROUP})
    refuse(load, D1, 100)
    assert not load.full(D1)


def test_bad_requests_close_no_idle_deployment() -> None:
    """No leg would end and open it again."""
    load, _ = loaded(0, 0, 0)
    load.limit({each.name: 1.0 for each in GROUP})
    for each in GROUP:
        refuse(load, each, 100)
    assert not any(load.full(each) for each in GROUP)


def test_each_end_of_a_leg_serves_what_waits_while_an_engine_refuses() -> None:
    load, _ = loaded(0, 3, 4)
    load.limit({each.name: 4.0 for each in GROUP})
    calls: list[str] = []
    load.on_release = lambda: calls.append("room")
    load.release(D2)
    assert not calls, "D2 was not full"
    refuse(load, D1, 8)
    calls.clear()
    load.release(D2)
    assert calls == ["room"], "D1 may be free now"


def test_the_queue_is_woken_only_if_refusals_have_closed_an_engine() -> None:
    load, _ = loaded(0, 3, 3)
    load.limit({each.name: 4.0 for each in GROUP})
    calls: list[str] = []
    load.on_release = lambda: calls.append("room")
    refuse(load, D1, 7)
    load.release(D2)
    assert not calls, "every engine has had room"
    refuse(load, D1)
    assert calls == ["room"]


class _Walks(tuple[Endpoint, ...]):
    """A group that counts how often it is walked."""

    number = 0

    def __iter__(self) -> Iterator[Endpoint]:
        _Walks.number += 1
        return super().__iter__()


def test_the_end_of_a_leg_walks_no_engines_unless_a_refused_leg_of_its_group_counts() -> None:
    load, _ = loaded(0, 3, 3)
    group, others = _Walks(GROUP), _Walks((OTHER,))
    load.group({**{each.name: group for each in GROUP}, OTHER.name: others})
    load.acquire(OTHER)
    refuse(load, D1)
    _Walks.number = 0
    load.release(OTHER)
    assert _Walks.number == 0, "another group"
    load.refusals[D1.name].legs = 0.0
    load.release(D2)
    assert _Walks.number == 0, "what was refused would have ended"


def test_a_leg_that_is_never_created_shows_nothing_about_its_engine() -> None:
    load, _ = loaded(0, 3, 2)
    load.limit({each.name: 4.0 for each in GROUP})
    refuse(load, D1, 8)
    before, number = load.of(D1), load.refusals[D1.name].number
    calls: list[str] = []
    load.on_release = lambda: calls.append("room")
    Room(load, D1, D2).give_up()
    assert (load.of(D1), load.refusals[D1.name].number) == (before, number)
    assert (load.count(D1), load.count(D2)) == (0, 3)
    assert calls, "its room is free for what waits"


def test_old_ones_count_no_longer_and_are_forgotten_when_another_engine_serves() -> None:
    load, clock = loaded(0, 3, 3)
    refuse(load, D1, 5)
    assert load.of(D1) == 4
    clock.now += REFUSED_SECONDS
    assert load.of(D1) == 0
    load.release(D2)
    assert not load.refusals


def test_they_are_forgotten() -> None:
    load, clock = loaded(0, 3, 3)
    refuse(load, D1)
    refuse(load, OTHER)
    load.group({each.name: GROUP for each in GROUP})
    assert list(load.refusals) == [D1.name], "one that is gone"
    assert load.has_refused(D1)
    clock.now += REFUSED_SECONDS
    assert not load.has_refused(D1)
    load.group({each.name: GROUP for each in GROUP})
    assert not load.refusals


@pytest.mark.parametrize("seconds", [1, 5, 40])
def test_a_refuser_gets_its_fair_share(seconds: int) -> None:
    """Ten requests a second come, and two of three engines serve each for some seconds."""
    load, _ = loaded()
    open_legs: list[tuple[float, Endpoint]] = []
    got = dict.fromkeys((each.name for each in GROUP), 0)
    for number in range(3000):
        now = number / 10
        while open_legs and open_legs[0][0] <= now:
            load.release(open_legs.pop(0)[1])
        chosen = least(GROUP, load.of, number)
        got[chosen.name] += 1
        if chosen is D1:
            refuse(load, D1)
        else:
            load.acquire(chosen)
            open_legs.append((now + seconds, chosen))
    assert got[D1.name] <= 1100
    assert abs(got[D2.name] - got[D3.name]) < 150
