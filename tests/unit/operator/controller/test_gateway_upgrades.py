"""A few objects at a time have their gateways replaced."""

from pdx_operator.controller.gateway_upgrades import EXPIRES_SECONDS, GatewayUpgrades
from pdx_operator.kube.resources import Key

A, B, C, D = (Key("ns", name) for name in "abcd")


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_slot_goes_to_the_object_that_waits_longest() -> None:
    notified: list[Key] = []
    upgrades = GatewayUpgrades(2, _Clock(), notified.append)
    assert [upgrades.start(key) for key in (A, B, C, D)] == [True, True, False, False]
    assert upgrades.start(A), "it has a slot"
    upgrades.finish(B)
    assert notified == [C]
    assert [upgrades.start(key) for key in (C, D)] == [True, False]
    upgrades.finish(B)
    assert notified == [C], "B has no slot to give"
    upgrades.finish(A)
    upgrades.finish(C)
    assert notified == [C, D, D]


def test_an_object_that_is_gone_waits_no_more() -> None:
    notified: list[Key] = []
    upgrades = GatewayUpgrades(1, _Clock(), notified.append)
    assert [upgrades.start(key) for key in (A, B)] == [True, False]
    upgrades.finish(B)
    upgrades.finish(A)
    assert notified == []


def test_a_gateway_that_does_not_become_ready_loses_its_slot() -> None:
    clock = _Clock()
    upgrades = GatewayUpgrades(1, clock, lambda key: None)
    assert upgrades.start(A)
    clock.now = EXPIRES_SECONDS - 1
    assert not upgrades.start(B)
    clock.now = EXPIRES_SECONDS
    assert upgrades.start(B)
    assert not upgrades.start(A)
