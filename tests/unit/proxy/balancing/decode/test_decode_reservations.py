"""What a request adds to the state of D's: once its engine has answered 200, and taken back once otherwise."""

from dataclasses import replace
from itertools import product
from math import exp

import pytest

from pdx_proxy.endpoints.models import ServedModel
from tests.unit.proxy.balancing.decode.test_decode_balancer import D1, D2, Rig, ready


def test_the_kv_that_a_d_gets_counts_once_it_has_answered() -> None:
    rig = Rig(D1, D2)
    engine, kept = rig.by.prefills.expected.engine(D1.name), rig.by.decodes._kept
    for ends in product(("answered", "dropped"), repeat=3):
        before = (kept._count, engine.cache.tokens)
        base = 10 * engine.cache.tokens + 10_000
        request = rig.request(3_000, base, base + 1)
        leg = rig.by.sent_split(D1, request)
        assert leg is not None
        assert engine.cache.cached(request.features.blocks) == 3_000, "its conversation stays here meanwhile"
        assert (kept._count, engine.cache.tokens) == before
        for end in ends:
            leg.answered(rig.now) if end == "answered" else leg.dropped()
        computed = ends[0] == "answered"
        assert (kept._count, engine.cache.tokens) == (before[0] + computed, before[1] + 3_000 * computed)
        assert engine.cache.cached(request.features.blocks) == 3_000 * computed


def test_few_tokens_are_not_tracked_at_d() -> None:
    rig = Rig(D1, D2)
    assert rig.by.sent_split(D1, rig.request(500, 1)) is None


def test_a_long_prompt_lengthens_the_usual_one_by_what_its_engine_accepts() -> None:
    rig = Rig(replace(D1, models=(ServedModel("a", b"", 16_384, b""),)), D2)
    leg = rig.by.sent_split(D1, rig.request(15_000_000, 1, 2))
    assert leg is not None
    leg.answered(1.0)
    assert rig.by.decodes._kept._mean == 16_384


def test_a_d_whose_engine_restarted_meanwhile_keeps_nothing() -> None:
    rig = Rig(D1, D2)
    request = rig.request(3_000, 1, 2)
    leg = rig.by.sent_split(D1, request)
    assert leg is not None
    rig.put(replace(D1, generation=2), D2)
    leg.answered(rig.now)
    assert rig.by.prefills.expected.engine(D1.name).cache.tokens == 0


@pytest.mark.parametrize("ends", [*product(("answered", "dropped"), repeat=3)], ids="-".join)
def test_a_whole_prompt_takes_time_of_its_d_unless_it_is_refused(ends: tuple[str, ...]) -> None:
    rig = ready()
    share = rig.by.decodes._share(D1.name)
    before, limits = share.at(rig.now), rig.by.decodes.batch_limits()
    leg = rig.by.sent(D1, rig.request(2_000))
    assert leg is not None
    taken, lower = share.at(rig.now), rig.by.decodes.batch_limits()
    assert taken > before + 0.1
    assert lower[D1.name] < limits[D1.name], "a burst is spread"
    rig.now += 1.0
    for end in ends:
        leg.answered(rig.now) if end == "answered" else leg.dropped()
    assert rig.by.prefills.expected.engine(D1.name).backlog == 0
    decay = exp(-1.0 / share.window)
    assert share.at(rig.now) == pytest.approx((taken if ends[0] == "answered" else before) * decay)


def test_a_refused_prompt_takes_no_time() -> None:
    rig = ready()
    share = rig.by.decodes._share(D1.name)
    leg = rig.by.sent(D1, rig.request(20_000))
    assert leg is not None
    rig.by.decodes._prefilled(D1.name, share, rig.now)
    leg.dropped()
    assert rig.by.decodes._prefilled(D1.name, share, rig.now) == 0.0


def test_no_request_needs_more_kv_than_its_engine_accepts() -> None:
    """A prompt of 60 MiB, which is refused, has no D that is short of KV preferred over another."""
    model = ServedModel("a", b"", 16_384, b"")
    rig = Rig(replace(D1, models=(model,)), replace(D2, models=(model,)))
    rig.open(2)
    rig.go_on(2)
    assert rig.by.decodes._tokens(rig.request(15_000_000)) == 16_384
    assert rig.by.decodes._tokens(rig.request(1_000, most_tokens=10.0)) == 1_010
