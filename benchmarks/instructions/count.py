"""Counts the cases: a gateway under callgrind, engines that answer at once, and clients in a closed loop.

The count of a case is the difference between two runs of different lengths, divided by the requests that the longer
one has more. So start-up and the harness are not in it. Instructions of the kernel are not counted.
"""

import math
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.gateway import cache, processes
from benchmarks.gateway.commits import CHECKOUT, Code
from benchmarks.gateway.measure import read_queue
from benchmarks.instructions.cases import CASES, Case, Flags
from benchmarks.instructions.client import Client
from benchmarks.instructions.environment import TUNABLES
from benchmarks.instructions.profile import Profile, read_profile
from benchmarks.instructions.still_gateway import GO, STOP

_SAME: Final = 0.01
"""Two short runs in a row that differ by less than this share: nothing is left to warm up."""
_MOST_WARM_UPS: Final = 12
_START_SECONDS: Final = 600.0
_END_SECONDS: Final = 60.0
_TIMEOUT: Final = 600.0
_QUIET_SECONDS: Final = 2.0
"""Without a poll for this time, the polls have stopped."""
_POLL_SECONDS: Final = 11.0
"""How long polls are counted: a round of the slowest poller."""
_PATIENT: Final = [
    part for name in ("connect", "prefill", "handoff", "first-event") for part in (f"--{name}-seconds", f"{_TIMEOUT:g}")
]
_FIRST_PORT: Final = 18401


class CountError(Exception):
    """The count failed; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Run:
    """One count of a case."""

    profile: Profile
    """Of one request."""
    requests: int
    """Of both runs."""
    waited: int
    """Those of them that waited in the queue."""


@dataclass(frozen=True, slots=True)
class _Ports:
    """The ports of one gateway and its engines."""

    first: int

    @property
    def prefill(self) -> tuple[int, int]:
        return self.first, self.first + 1

    @property
    def decode(self) -> tuple[int, int]:
        return self.first + 2, self.first + 3

    @property
    def gateway(self) -> int:
        return self.first + 4

    @property
    def admin(self) -> int:
        return self.first + 5

    @classmethod
    def blocks(cls, number: int) -> "queue.SimpleQueue[_Ports]":
        """Return ports for so many gateways at a time."""
        blocks: queue.SimpleQueue[_Ports] = queue.SimpleQueue()
        for block in range(number):
            blocks.put(cls(_FIRST_PORT + 10 * block))
        return blocks


def count_all(
    codes: Sequence[Code], times: int, report: Callable[[str], None]
) -> list[tuple[Mapping[str, Sequence[Run]], float]]:
    """Count each case of each code so many times, each time with a new gateway; one gateway per core.

    Also return what polls of four engines cost, in instructions per second. Raises CountError, SetupError or
    AnswerError.
    """
    tools, cores = cache.build(), sorted(os.sched_getaffinity(0))
    blocks = _Ports.blocks(len(cores))

    def count(code: Code, flags: Flags, polls: bool) -> tuple[Mapping[str, Run], float]:
        ports = blocks.get()
        try:
            with (
                tempfile.TemporaryDirectory(prefix="pdx-count-") as name,
                _Gateway.started(code, flags, ports, tools.engine, Path(name)) as gateway,
            ):
                runs = _count_cases(gateway, code.name, flags, report)
                return runs, gateway.count_polls() if polls else 0.0
        finally:
            blocks.put(ports)

    with ThreadPoolExecutor(len(cores)) as pool:
        first = Flags.DEFAULT, 0
        jobs = [
            [pool.submit(count, code, flags, (flags, number) == first) for number in range(times) for flags in Flags]
            for code in codes
        ]
        try:
            return [_merge([job.result() for job in of_code]) for of_code in jobs]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _merge(results: Sequence[tuple[Mapping[str, Run], float]]) -> tuple[Mapping[str, Sequence[Run]], float]:
    merged: dict[str, list[Run]] = {case.name: [] for case in CASES}
    for runs, _ in results:
        for name, run in runs.items():
            merged[name].append(run)
    return merged, sum(polls for _, polls in results)


def _count_cases(gateway: "_Gateway", name: str, flags: Flags, report: Callable[[str], None]) -> Mapping[str, Run]:
    """Count the cases of one gateway."""
    runs: dict[str, Run] = {}
    for case in [case for case in CASES if case.flags is flags]:
        runs[case.name] = run = gateway.count(case)
        counts = f"{run.profile.instructions:12,.0f} instructions {run.profile.system_calls:6.1f} system calls"
        report(f"{name} {case.name:12} {counts}, {run.waited} of {run.requests} requests waited")
    return runs


class _Gateway:
    """A gateway under callgrind, and its engines."""

    def __init__(self, process: "subprocess.Popen[bytes]", ports: _Ports, folder: Path) -> None:
        self._process = process
        self._ports = ports
        self._folder = folder

    @classmethod
    @contextmanager
    def started(cls, code: Code, flags: Flags, ports: _Ports, engine: Path, folder: Path) -> "Iterator[_Gateway]":
        """Start the engines and the gateway, wait until its limits are in force, and stop its polls."""
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        names = [*(f"p:{port}" for port in ports.prefill), *(f"d:{port}" for port in ports.decode)]
        with ExitStack() as stack:
            engines = processes.start([str(engine), *names], cores, folder / "engine.log")
            stack.callback(processes.end, engines)
            command = _command(flags, ports, folder)
            process = processes.start(command, cores, folder / "gateway.log", _env(code), folder)
            stack.callback(processes.end, process, _END_SECONDS)
            stack.callback(process.send_signal, GO)  # it also sleeps while it ends
            failure = processes.await_serving(process, ports.gateway, _START_SECONDS)
            if failure is not None:
                log = (folder / "gateway.log").read_text(errors="replace")
                raise CountError(f"The gateway {failure}: {log.strip()[-300:]}")
            gateway = cls(process, ports, folder)
            gateway._await_limits(flags)
            gateway._stop_polls()
            gateway._control("-i", "on")
            yield gateway

    def count(self, case: Case) -> Run:
        """Count a case."""
        polls = self._pages()
        with Client(self._ports.gateway, case.connections) as client:
            few, waited = self._warm_up(client, case)
            self._send(client, case, case.many)
            many = self._dump()
        requests = 2 if case.stream else case.few + case.many
        waited_after, _ = read_queue(self._ports.admin)
        run = Run(many.per_request(few, case.many - case.few), requests, round(waited_after - waited))
        if self._pages() != polls:
            raise CountError("The gateway polled its engines while its instructions were counted.")
        if not case.least_waited <= run.waited / requests <= case.most_waited:
            bounds = f"{case.least_waited:.0%} to {case.most_waited:.0%}"
            raise CountError(f"{run.waited} of {requests} requests of {case.name} waited in the queue, not {bounds}.")
        return run

    def _warm_up(self, client: Client, case: Case) -> tuple[Profile, float]:
        """Send the shorter run until two in a row cost the same.

        Return the last one, and how many requests had waited in the queue before it. While clients are still new, the
        gateway opens connections to engines whenever more requests than before meet at one. Each costs as much as a
        request. A stream is sent twice.
        """
        before = math.inf
        for _ in range(2 if case.stream else _MOST_WARM_UPS):
            waited, _ = read_queue(self._ports.admin)
            self._dump()
            self._send(client, case, case.few)
            few = self._dump()
            if abs(few.instructions / before - 1) < _SAME:
                break
            before = few.instructions
        return few, waited

    def count_polls(self) -> float:
        """Count polls of engines that report a page like vLLM's; return instructions per second."""
        for port in (*self._ports.prefill, *self._ports.decode):
            processes.get_text(port, "/metrics/on")
        self._dump()
        self._process.send_signal(GO)
        time.sleep(_POLL_SECONDS)
        return self._dump().instructions / _POLL_SECONDS

    def _send(self, client: Client, case: Case, length: int) -> None:
        """Send so many requests, or one stream of so many events."""
        if case.stream:
            client.send(case.request(length), 1)
        else:
            client.send(case.request(), length)

    def _await_limits(self, flags: Flags) -> None:
        """Wait until the limit of each engine admits as many requests as the flags intend."""
        engines = len(self._ports.prefill) + len(self._ports.decode)
        ends = time.monotonic() + _TIMEOUT
        while True:
            _, limits = read_queue(self._ports.admin)
            if len(limits) == engines and all(limit in flags.limits for limit in limits):
                return
            if time.monotonic() > ends:
                raise CountError(f"The limits of the engines are {limits}, not {flags.limits}.")
            time.sleep(0.2)

    def _stop_polls(self) -> None:
        self._process.send_signal(STOP)
        ends, pages = time.monotonic() + _TIMEOUT, -1
        while pages != (pages := self._pages()):
            if time.monotonic() > ends:
                raise CountError("The gateway's polls cannot be stopped: still_gateway.py has to know how they pause.")
            time.sleep(_QUIET_SECONDS)

    def _pages(self) -> int:
        """Return how often the engines' metrics pages have been requested."""
        return int(processes.get_json(self._ports.prefill[0], "/counts")["pages"])

    def _dump(self) -> Profile:
        """Return what has happened since the last dump."""
        before = set(self._folder.glob("callgrind.out.*"))
        self._control("-d")
        (new,) = set(self._folder.glob("callgrind.out.*")) - before
        with new.open(errors="replace") as lines:
            return read_profile(lines)

    def _control(self, *arguments: str) -> None:
        """Send callgrind a command."""
        command = ["callgrind_control", *arguments, str(self._process.pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
        if done.returncode:
            raise CountError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")


def _command(flags: Flags, ports: _Ports, folder: Path) -> Sequence[str]:
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--dump-line=no", "--collect-systime=yes"]
    python = [sys.executable, "-m", "benchmarks.instructions.still_gateway"]
    line = [*valgrind, f"--callgrind-out-file={folder}/callgrind.out", *python, "--workers", "1"]
    line += ["--listen", f"127.0.0.1:{ports.gateway}", "--admin", f"127.0.0.1:{ports.admin}"]
    line += ["--prefill", *_urls(ports.prefill), "--decode", *_urls(ports.decode), "--verification-period-seconds", "0"]
    return [*line, *_PATIENT, *flags.value]


def _env(code: Code) -> Mapping[str, str]:
    return {"PYTHONPATH": code.python_path(CHECKOUT), "PYTHONHASHSEED": "0", "GLIBC_TUNABLES": TUNABLES}


def _urls(ports: Sequence[int]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in ports]
