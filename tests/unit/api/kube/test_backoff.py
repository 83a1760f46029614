"""Exponential backoff."""

from pdx_api.kube.backoff import Backoff


def test_delays_double_up_to_a_limit() -> None:
    backoff = Backoff(1.0, 5.0, lambda: 0.5)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0
    assert Backoff(1.0, 5.0, lambda: 0.0).next() == 0.5
