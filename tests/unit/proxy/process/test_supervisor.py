"""How long a worker's next start waits."""

import pytest

from pdx_proxy.process.supervisor import restart_pause


@pytest.mark.parametrize(
    ("before", "ran", "pause"),
    [(0.2, 0.0, 0.4), (0.4, 9.9, 0.8), (8.0, 0.0, 10.0), (10.0, 0.0, 10.0), (10.0, 11.0, 0.2)],
)
def test_a_worker_that_ends_early_starts_ever_later(before: float, ran: float, pause: float) -> None:
    assert restart_pause(before, ran) == pause
