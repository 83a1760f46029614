"""Which actions follow from a change of the endpoints. The registry needs no loop, no socket and no clock."""

from dataclasses import replace

from pdx_api.connectors.families import Identity
from pdx_api.names import Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import State, pairing
from pdx_proxy.endpoints.events import Cause, LostHandoff, NotReady, Suspect
from pdx_proxy.health.registry import Actions, EndpointRegistry

P, D = (EndpointSpec(Address("h", port), role) for port, role in ((1, Role.PREFILL), (2, Role.DECODE)))
OTHER = EndpointSpec(Address("h", 3), Role.DECODE)


def make_registry(*specs: EndpointSpec, warm: bool = True) -> EndpointRegistry:
    registry = EndpointRegistry(specs, clock=lambda: 100.0)
    if warm:
        for spec in specs:
            registry.warm_up_succeeded(registry.endpoint(spec.name))
    return registry


def test_every_endpoint_is_warmed_up_at_the_start() -> None:
    registry = make_registry(P, replace(D, ready=False), replace(OTHER, leaving=True), warm=False)
    assert registry.start() == Actions(start=("h:1",))


def test_the_same_specs_change_nothing() -> None:
    assert make_registry(P, D).update([P, D]) == Actions()


def test_engines_that_are_new_restarted_leaving_and_gone() -> None:
    registry = make_registry(P, D)
    assert registry.update([P, D, OTHER]) == Actions(publish=True, wake_prefills=True, start=("h:3",))
    restarted = replace(D, instance="again")
    actions = registry.update([P, restarted, OTHER])
    assert (actions.cancel, actions.start) == (("h:2",), ("h:2",))
    assert (registry.endpoint("h:2").state, registry.endpoint("h:2").generation) == (State.COLD, 1)
    assert registry.update([P, replace(restarted, leaving=True), OTHER]).cancel == ("h:2",)
    actions = registry.update([P, OTHER])
    assert (actions.cancel, actions.start) == (("h:2",), ())
    assert [e.name for e in registry.snapshot.everything] == ["h:1", "h:3"]


def test_a_result_of_an_earlier_start_is_ignored() -> None:
    registry = make_registry(D, warm=False)
    before = registry.endpoint("h:2")
    registry.update([replace(D, instance="again")])
    assert registry.warm_up_failed(before, "late", down=True) == Actions()
    assert not registry.warm_up_succeeded(before).publish
    registry.update([])
    assert registry.warm_up_failed(before, "late", down=True) == Actions()


def test_an_engine_that_is_not_ready_has_not_failed() -> None:
    registry = make_registry(D, OTHER)
    actions = registry.on_event(NotReady("h:2", 1, "is paused"))
    assert actions == Actions(publish=True, start=("h:2",), pause=0.2)
    endpoint = registry.endpoint("h:2")
    assert (endpoint.state, endpoint.reason, endpoint.ejections) == (State.PAUSED, "is paused", 0)
    assert not any(registry.ejections.values())
    assert [e.name for e in registry.snapshot.decode] == ["h:3"]
    assert registry.on_event(NotReady("h:3", 9, "is paused")) == Actions(), "an earlier start"
    registry.on_event(NotReady("h:3", 1, "is retired", retired=True))
    assert (registry.endpoint("h:3").state, registry.snapshot.decode) == (State.RETIRED, ()), "not even as the last one"


def test_events_of_workers() -> None:
    registry = make_registry(D, OTHER)
    assert registry.on_event(LostHandoff("h:9")) == Actions(), "it is gone"
    assert registry.on_event(LostHandoff("h:2")) == Actions(publish=True)
    assert registry.endpoint("h:2").lost == 1
    assert registry.on_event(Suspect("h:2", 0, "late")) == Actions(), "an earlier generation"
    assert registry.on_event(Suspect("h:2", 1, "lost")) == Actions(publish=True, start=("h:2",))
    assert registry.endpoint("h:2").state is State.SUSPECT
    assert registry.on_event(Suspect("h:2", 1, "lost")) == Actions(), "it is suspect already"
    assert registry.on_event(Suspect("h:3", 1, "500", Cause.CONSECUTIVE_ERRORS)) == Actions(), "the last one"
    assert (registry.ejections[Cause.LOST], registry.ejections[Cause.OVERRIDDEN]) == (1, 1)


def test_a_decode_that_is_warm_wakes_prefills() -> None:
    registry = make_registry(P, D, warm=False)
    prefill = registry.endpoint("h:1")
    assert registry.next_decode(prefill) is None
    assert registry.waiting_for_decode(prefill) == Actions(publish=True)
    assert registry.waiting_for_decode(prefill) == Actions(), "no change"
    assert registry.warm_up_succeeded(registry.endpoint("h:2")) == Actions(publish=True, wake_prefills=True)
    decode = registry.next_decode(prefill)
    assert decode is not None
    identity = Identity("engine", "h", 1)
    assert registry.warm_up_succeeded(prefill, identity, decode) == Actions(publish=True)
    warm = registry.endpoint("h:1")
    assert (warm.identity, warm.generation) == (identity, 1)
    assert registry.snapshot.handshaken == {pairing(warm, decode)}
    registry.on_event(Suspect("h:2", 1, "lost"))
    registry.warm_up_succeeded(registry.endpoint("h:2"))
    assert not registry.snapshot.handshaken, "D has another generation"


def test_suspended_pairs_hold_in_every_generation() -> None:
    registry = make_registry(P, D, warm=False)
    assert registry.set_pairs(frozenset({("h:1", "h:2"), ("h:1", "gone")}), frozenset({("gone", "h:2")})).publish
    for generation in (0, 1):
        snapshot = registry.snapshot
        assert snapshot.suspended == {pairing(registry.endpoint("h:1"), registry.endpoint("h:2"))}
        assert registry.endpoint("h:1").generation == generation
        assert not snapshot.watched
        registry.warm_up_succeeded(registry.endpoint("h:1"))


def test_decodes_alternate() -> None:
    registry = make_registry(P, D, OTHER)
    names = [decode.name for _ in range(4) if (decode := registry.next_decode(registry.endpoint("h:1")))]
    assert names == ["h:2", "h:3", "h:2", "h:3"]


def test_an_engine_that_is_down_has_lost_nothing() -> None:
    registry = make_registry(D)
    registry.on_event(LostHandoff("h:2"))
    registry.on_event(Suspect("h:2", 1, "lost"))
    registry.warm_up_failed(registry.endpoint("h:2"), "status 500", down=False)
    assert registry.endpoint("h:2").lost == 1
    registry.warm_up_failed(registry.endpoint("h:2"), "no connection", down=True)
    assert registry.endpoint("h:2").lost == 0
