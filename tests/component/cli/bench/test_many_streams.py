"""One generator with 1,000 streams: what it costs at 5 tokens/s each, and that it reports when it is the limit.

`python -m benchmarks.bench streams` measures its lateness, which on a busy machine is the machine's.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.bench.streams import STREAMS, stream
from pdx_cli.bench.load.lateness import LIMIT

pytestmark = [pytest.mark.alone, pytest.mark.timeout(180)]


def test_5_tokens_a_second_cost_little() -> None:
    found = stream(5.0, 7.0)
    assert found.cpu < 0.5
    late = found.outcome.lateness
    assert late.is_limit is (late.p99 > LIMIT)


@contextmanager
def _rival() -> Iterator[None]:
    """A thread that holds the interpreter for 10 ms at a time: the generator gets the rest."""
    ended, before = threading.Event(), sys.getswitchinterval()

    def burn() -> None:
        while not ended.is_set():
            pass

    thread = threading.Thread(target=burn)
    sys.setswitchinterval(0.01)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(before)


def test_a_generator_that_comes_too_late_is_the_limit() -> None:
    """A fifth of the streams: each read and each connection waits 10 ms for the rival."""
    with _rival():
        assert stream(5.0, 4.0, STREAMS // 5).outcome.lateness.is_limit


@pytest.mark.soak
def test_5_tokens_a_second_are_punctual() -> None:
    assert not stream(5.0, 12.0).outcome.lateness.is_limit
