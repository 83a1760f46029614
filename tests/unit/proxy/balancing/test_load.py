"""Limits of legs: each endpoint's own, or those of all P's of a revision together."""

from math import inf

import pytest

from pdx_api.names import Role
from pdx_proxy.balancing.load import MOST_BORROWED, Load
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint


def endpoint(port: int, role: Role = Role.PREFILL, revision: str = "r1") -> Endpoint:
    return Endpoint(EndpointSpec(Address("127.0.0.1", port), role, revision=revision))


def loaded(limits: dict[Endpoint, float], **legs: int) -> Load:
    """A load with these limits, in which the n-th endpoint has so many legs."""
    load = Load()
    load.limits = {each.name: limit for each, limit in limits.items()}
    for each, count in zip(limits, legs.values(), strict=False):
        for _ in range(count):
            load.acquire(each)
    return load


def test_without_lenders_an_endpoint_is_full_at_its_own_limit() -> None:
    a, b = endpoint(1), endpoint(2)
    load = loaded({a: 3.0, b: 5.0}, a=3, b=4)
    assert (load.full(a), load.full(b)) == (True, False)
    load.release(a)
    assert not load.full(a)
    assert not load.full(endpoint(9)), "an endpoint without a limit is never full"


def test_a_prefill_engine_borrows_what_others_of_its_revision_have_free() -> None:
    a, b, other = endpoint(1), endpoint(2), endpoint(3, revision="r2")
    load = loaded({a: 3.0, b: 5.0, other: 8.0}, a=6, b=1)
    load.lend({"r1": (a, b), "r2": (other,)})
    assert not load.full(a)
    load.acquire(a)
    assert (load.full(a), load.full(b)) == (True, True), "together they have all that their limits allow"
    assert not load.full(other)
    load.release(b)
    assert not load.full(a)


def test_a_prefill_engine_borrows_no_more_than_a_multiple_of_its_limit() -> None:
    a, b = endpoint(1), endpoint(2)
    load = loaded({a: 2.0, b: 100.0}, a=int(2 * MOST_BORROWED))
    load.lend({"r1": (a, b)})
    assert (load.full(a), load.full(b)) == (True, False)
    load.lend({"r1": (a, b)}, 3)
    load.release(a)
    assert load.full(a), "a limit of the settings is a bound for each P"


@pytest.mark.parametrize("role", [Role.DECODE, Role.AGGREGATED])
def test_only_prefill_engines_borrow(role: Role) -> None:
    a, b = endpoint(1, role), endpoint(2)
    load = loaded({a: 1.0, b: 5.0}, a=1)
    load.lend({"r1": (b,)})
    assert load.full(a)


def test_lenders_without_a_limit_are_never_full() -> None:
    a, b = endpoint(1), endpoint(2)
    load = loaded({a: 1.0}, a=3)
    load.lend({"r1": (a, b)})
    assert not load.full(a)
    assert {name: each.limit for name, each in load.borrowers.items()} == {a.name: inf, b.name: inf}


def test_only_an_engine_that_was_full_wakes_a_request_that_waits() -> None:
    a, b, d = endpoint(1), endpoint(2), endpoint(3, Role.DECODE)
    load = loaded({a: 3.0, b: 5.0, d: 2.5}, a=6, b=2, d=3)
    load.lend({"r1": (a, b)})
    woken: list[int] = []
    load.on_release = lambda: woken.append(load.count(d))
    load.release(d)
    assert woken == [2], "three legs are more than 2.5"
    load.release(d)
    assert woken == [2], "it had room"
    load.release(b)
    assert len(woken) == 2, "all P's together were full"
    load.release(a)
    assert len(woken) == 2
    load.limits = {d.name: 1.0}
    load.acquire(d)
    load.acquire(d)
    load.release(d)
    assert len(woken) == 2, "it is still full"
