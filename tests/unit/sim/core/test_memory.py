"""The pool of blocks, and the leases of pinned prefills."""

from pdx_sim.core.blocks import BlockPool
from pdx_sim.core.leases import Leases, Settled


def test_the_pool_gives_all_or_none() -> None:
    pool = BlockPool(10)
    assert pool.take("a", 6)
    assert not pool.take("b", 5)
    assert pool.take("a", 1)
    assert (pool.held, pool.free_blocks, pool.owners) == (7, 3, {"a": 7})
    assert (pool.free("a"), pool.free("a"), pool.held) == (7, 0, 0)


def test_lease_ends_unless_extended_or_taken() -> None:
    leases = Leases(30.0)
    for name in ("cmpl-a-0-11111111", "cmpl-b-0-11111111", "cmpl-c-0-11111111"):
        leases.pin(name, "digest", 20, 2, now=0.0)
    assert leases.extend("cmpl-a-0-11111111", now=20.0)
    assert leases.take("cmpl-b-0-11111111") is not None
    assert leases.blocks == 4
    assert [pinned.internal_id for pinned in leases.expire(30.0)] == ["cmpl-c-0-11111111"]
    assert [pinned.internal_id for pinned in leases.expire(40.0)] == ["cmpl-a-0-11111111"]
    assert (leases.blocks, len(leases)) == (0, 0)
    assert leases.settled("cmpl-b-0-11111111") is Settled.TAKEN
    assert leases.settled("cmpl-c-0-11111111") is Settled.EXPIRED
    assert leases.settled("cmpl-x-0-11111111") is None


def test_early_heartbeat_does_not_shorten_a_lease() -> None:
    leases = Leases(30.0)
    leases.pin("cmpl-a-0-11111111", "digest", 20, 2, now=0.0)
    leases.extend("cmpl-a-0-11111111", now=1.0)
    assert not leases.expire(29.0)


def test_a_pinned_prefill_is_found_by_its_push_id() -> None:
    leases = Leases(30.0)
    leases.pin("cmpl-a-0-11111111", "digest", 20, 2, now=0.0)
    assert leases.find("cmpl-a-0") is not None
    leases.take("cmpl-a-0-11111111")
    assert leases.find("cmpl-a-0") is None
