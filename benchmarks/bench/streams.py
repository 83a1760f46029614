"""One generator with 1,000 streams: punctual at 5 tokens/s each, and the limit by its own account at 50."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.bench.lines import Line, append, read
from pdx_cli.bench.load.connection import Server
from pdx_cli.bench.load.generator import Generator, Outcome, Shape, Step
from pdx_cli.bench.load.lateness import LIMIT
from pdx_cli.bench.load.workload import Planned

STREAMS: Final = 1000
RAMP: Final = 3.0
"""Seconds in which the streams begin."""
RATES: Final[Mapping[float, bool]] = {5.0: False, 50.0: True}
"""Tokens per second of each stream -> whether the generator is the limit."""
SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Streamed:
    """What one run has shown."""

    outcome: Outcome
    cpu: float
    """CPU time of the generator's process, as a share of one core."""


def stream(rate: float, seconds: float, streams: int = STREAMS) -> Streamed:
    """Receive so many streams for so many seconds."""
    with _tokens(rate) as url, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        began, used = time.perf_counter(), time.process_time()
        outcome = runner.run(_run(url, rate, seconds, streams))
        cpu = (time.process_time() - used) / (time.perf_counter() - began)
    assert len(outcome.records) == streams
    assert {record.failure for record in outcome.records} == {None}
    return Streamed(outcome, cpu)


@contextmanager
def _tokens(rate: float) -> Iterator[str]:
    server = Path(__file__).with_name("token_server.py")
    process = subprocess.Popen([sys.executable, str(server), "0", str(rate)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


async def _run(url: str, rate: float, seconds: float, streams: int) -> Outcome:
    count = int(rate * (seconds - RAMP))
    planned = (Planned(i, i * RAMP / streams, 20, count, ((-1 - i, 20),)) for i in range(streams))
    generator = Generator(Server.of(url), Shape("sim"), time.perf_counter)
    try:
        return await generator.run(Step(planned, seconds, 0.0, 120.0, "salt"))
    finally:
        generator.close()


def run(results: Path) -> None:
    """Add the runs that the file of results lacks."""
    done = {line["rate"] for line in read(results)}
    for rate in RATES:
        if rate in done:
            continue
        found = stream(rate, SECONDS)
        late = found.outcome.lateness
        numbers = {"p50": late.p50, "p99": late.p99, "most": late.most}
        line = {"rate": rate, **{name: round(1000 * each, 3) for name, each in numbers.items()}}
        append(results, {**line, "cpu": round(found.cpu, 3), "limit": late.is_limit})


def table(lines: Sequence[Line]) -> Iterator[str]:
    """Markdown: one row for each rate."""
    yield "| tokens/s of each of 1,000 streams | lateness p50 / p99 / max, ms | CPU of the generator | result |"
    yield "|---|---|---|---|"
    for line in lines:
        times = " / ".join(f"{line[name]:.2f}" for name in ("p50", "p99", "most"))
        result = "invalid: the generator was the limit" if line["limit"] else "valid"
        yield f"| {line['rate']:g} | {times} | {100 * line['cpu']:.0f} % of a core | {result} |"


def holds(lines: Sequence[Line]) -> bool:
    """Whether the generator is punctual where it must be, and says so where it is not."""
    found = {line["rate"]: line for line in lines}
    return all(
        found[rate]["limit"] is limit and (found[rate]["p99"] > 1000 * LIMIT) is limit for rate, limit in RATES.items()
    )
