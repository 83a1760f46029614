"""Whether a client accepts what waits for it."""

from pdx_proxy.http.downstream.transport import SendProgress


def test_a_client_that_accepts_nothing_is_stalled() -> None:
    progress = SendProgress()
    assert [progress.stalled_seconds(100, 5, now) for now in (10.0, 15.0, 70.0)] == [0.0, 5.0, 60.0]


def test_every_accepted_byte_counts() -> None:
    progress = SendProgress()
    seen = [(100, 5, 0.0), (100, 6, 50.0), (100, 6, 100.0), (100, 7, 109.0), (99, 7, 150.0), (120, 7, 160.0)]
    assert [progress.stalled_seconds(*each) for each in seen] == [0.0, 0.0, 50.0, 0.0, 0.0, 10.0]


def test_a_client_for_which_nothing_waits_is_never_stalled() -> None:
    progress = SendProgress()
    assert [progress.stalled_seconds(0, 5, now) for now in (0.0, 100.0)] == [0.0, 0.0]
    assert progress.stalled_seconds(10, 5, 200.0) == 0.0, "bytes wait since the last inspection at the earliest"
    assert progress.stalled_seconds(10, 5, 230.0) == 30.0
