"""The programs that these tests start have the default dispositions of signals."""

import signal
from collections.abc import Iterator

import pytest

from pdx_cli.interrupts import STOP_SIGNALS


@pytest.fixture(autouse=True)
def default_dispositions() -> Iterator[None]:
    """Replace an ignored signal by one that a handler discards.

    In a background job, and under `nohup`, pytest ignores signals. A program that it starts would ignore them as well;
    in place of a handler it gets the default.
    """
    ignored = [number for number in STOP_SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
