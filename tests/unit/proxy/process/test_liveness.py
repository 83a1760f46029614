"""When a worker is replaced: sequences of samples, each with the seconds since the one before."""

from collections.abc import Iterable
from itertools import repeat

import pytest

from pdx_proxy.process.heartbeats import parse_stat
from pdx_proxy.process.liveness import LONGEST_STEP, SERVING, Fault, Sample, Silence


def faults(samples: Iterable[tuple[Sample, float]], silence: Silence | None = None) -> list[Fault | None]:
    silence = silence or Silence(beats=7, cpu_before=1.0)
    found: list[Fault | None] = []
    for sample, elapsed in samples:
        silence = silence.observe(sample, elapsed)
        found.append(silence.fault)
    return found


def at(state: str, *cpu: float, beats: int = 7) -> list[tuple[Sample, float]]:
    """One sample a second."""
    return [(Sample(beats, state, seconds), 1.0) for seconds in cpu]


def first(found: list[Fault | None]) -> tuple[int, Fault | None]:
    """The second of the first fault, and the fault."""
    return next(((number, fault) for number, fault in enumerate(found, 1) if fault is not None), (0, None))


IDLE = [1.0] * 30
BUSY = [1.0 + second for second in range(1, 31)]


@pytest.mark.parametrize(
    ("samples", "result"),
    [
        (at("T", *IDLE), (5, Fault.STOPPED)),
        (at("t", *IDLE), (5, Fault.STOPPED)),
        (at("S", *IDLE), (10, Fault.HANGS)),
        (at("R", *BUSY), (10, Fault.SPINS)),
        (at("R", *(1.0 + 0.25 * second for second in range(1, 31))), (10, Fault.SPINS)),
        (at("R", *(1.0 + 0.1 * second for second in range(1, 31))), (20, Fault.SPINS)),
    ],
    ids=["stopped", "traced", "hangs", "spins", "spins-with-a-quarter-of-a-core", "spins-with-a-tenth"],
)
def test_a_worker_that_serves_nothing_is_replaced(
    samples: list[tuple[Sample, float]], result: tuple[int, Fault]
) -> None:
    assert first(faults(samples)) == result


def test_a_stopped_worker_is_replaced_within_ten_seconds() -> None:
    assert SERVING.stopped + 2 * LONGEST_STEP < 10


@pytest.mark.parametrize(
    "samples",
    [
        at("R", *IDLE),
        at("R", *(1.0 + 0.01 * second for second in range(30))),
        at("D", *IDLE),
        [*at("S", *IDLE[:9]), *at("R", *IDLE[:9]), *at("S", *IDLE[:9])],
        [*at("T", *IDLE[:4]), *at("R", *IDLE[:2]), *at("T", *IDLE[:4])],
        [step for beats in range(8, 40) for step in at("R", 5.0 * beats, beats=beats)],
        [step for beats in range(8, 20) for step in at("S", *IDLE[:8], beats=beats)],
    ],
    ids=["starves", "starves-nearly", "waits-for-a-disk", "runs-at-times", "stopped-twice", "busy", "beats-rarely"],
)
def test_a_worker_that_may_be_alive_is_kept(samples: list[tuple[Sample, float]]) -> None:
    assert first(faults(samples)) == (0, None)


@pytest.mark.parametrize("state", ["T", "S", "R"])
@pytest.mark.parametrize("gap", [60.0, 86400.0])
def test_a_stop_of_all_processes_is_no_fault(state: str, gap: float) -> None:
    """The control process was stopped too, so its first sample afterwards comes late, and proves nothing."""
    samples = [(Sample(7, state, 1.0), 1.0), (Sample(7, state, 1.0), gap), (Sample(8, "S", 1.0), 1.0)]
    assert first(faults(samples)) == (0, None)


def test_a_start_may_take_longer() -> None:
    starting = Silence()
    assert first(faults(at("S", *IDLE, beats=0), starting)) == (0, None)
    assert first(faults(at("R", *IDLE, beats=0), starting)) == (0, None)
    assert first(faults(at("T", *IDLE, beats=0), starting)) == (5, Fault.STOPPED)
    forever = list(repeat((Sample(0, "S", 1.0), 1.0), 100))
    assert first(faults(forever, starting)) == (60, Fault.HANGS)


def test_the_kernels_line_of_a_process() -> None:
    line = "4711 (a) b (c) T 1 4711 4711 0 -1 4194560 900 0 0 0 150 50 0 0 20 0 1 0 12345 1 2 3"
    sample = parse_stat(line, 3)
    assert (sample.beats, sample.state) == (3, "T")
    assert sample.cpu > 0
    assert sample.cpu == 4 * parse_stat(line.replace(" 150 50 ", " 50 0 "), 3).cpu
