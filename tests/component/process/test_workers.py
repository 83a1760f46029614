"""The gateway as processes: several workers on one port, a worker that dies, and an orderly shutdown."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pdx_api.names import Order
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually, request_of
from tests.ports import free_port


def _is_worker(command: Path) -> bool:
    try:
        return b"pdx_proxy.process.worker_process" in command.read_bytes()
    except OSError:  # it has just ended
        return False


class Program:
    """`pdx gateway` as a child of this process."""

    def __init__(self, world: World, workers: int, *more: str) -> None:
        self.world = world
        self.listen, self.admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._arguments = [
            *("gateway", "--listen", self.listen, "--admin", self.admin),
            *(("--prefill", *(engine.url for engine in world.prefill)) if world.prefill else ()),
            *("--decode" if world.prefill else "--aggregated", *(engine.url for engine in world.decode)),
            *("--order", world.order, "--workers", str(workers), *more),
        ]
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("pdx"),
            *self._arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    @property
    def child(self) -> asyncio.subprocess.Process:
        assert self.process is not None
        return self.process

    async def state(self) -> dict[str, object]:
        return (await self.world.call("GET", f"http://{self.admin}/pdx/state")).json

    async def not_warm(self) -> dict[str, str]:
        """Return the states of the engines that are not warm, by URL."""
        endpoints = (await self.state())["endpoints"]
        assert isinstance(endpoints, list)
        return {each["url"]: each["state"] for each in endpoints if each["state"] != "Warm"}

    async def in_flight(self) -> int:
        """Return the legs that its workers count."""
        endpoints = (await self.state())["endpoints"]
        assert isinstance(endpoints, list)
        return sum(each["inFlight"] for each in endpoints)

    async def least_limit(self) -> float:
        """Return the smallest limit of legs; 0 while an engine may not be selected."""
        endpoints = (await self.state())["endpoints"]
        assert isinstance(endpoints, list)
        return min(each["limit"] or 0.0 for each in endpoints)

    async def warm(self) -> None:
        """Wait until it listens and every endpoint is warm."""
        assert self.child.stdout is not None
        async with asyncio.timeout(20):
            line = await self.child.stdout.readline()
            assert b"serving on" in line, await self.end()
            while True:
                endpoints = (await self.state())["endpoints"]
                assert isinstance(endpoints, list)
                if all(each["state"] == "Warm" for each in endpoints):
                    return
                await asyncio.sleep(0.02)

    async def complete(self, shape: Shape) -> str:
        reply = await self.world.call(
            "POST", f"http://{self.listen}{shape.path}", shape.body(), {"Connection": "close"}
        )
        assert reply.status == 200, reply
        return reply.text

    def workers(self) -> list[int]:
        """Return the pids of the worker processes."""
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text().split()
        return [int(pid) for pid in children if _is_worker(Path(f"/proc/{pid}/cmdline"))]

    async def end(self) -> tuple[int, str]:
        """Return its exit code and its stderr."""
        _, errors = await self.child.communicate()
        assert self.child.returncode is not None
        return self.child.returncode, errors.decode()

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@pytest.fixture
async def programs() -> AsyncIterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        await program.close()


async def _start(programs: list[Program], world: World, workers: int, *more: str) -> Program:
    program = Program(world, workers, *more)
    programs.append(program)
    await program.start()
    await program.warm()
    return program


async def _replaced(program: Program, victim: int) -> None:
    """Wait until another worker runs in place of the dead one."""

    def is_replaced(workers: list[int]) -> bool:
        return len(workers) == 2 and victim not in workers

    await eventually(lambda: is_replaced(program.workers()), 10.0, "a new worker")


async def test_two_workers_share_the_port(order: Order, make_world: MakeWorld, programs: list[Program]) -> None:
    world = await make_world(order, gateway=False)
    program = await _start(programs, world, 2)
    shapes = [Shape(stream=bool(number % 2)) for number in range(24)]
    texts = await asyncio.gather(*(program.complete(shape) for shape in shapes))
    assert texts == [shape.expected() for shape in shapes]
    states = await asyncio.gather(*(program.state() for _ in range(3)))  # concurrent callers share one report
    for state in states:
        outcomes = state["outcomes"]
        assert isinstance(outcomes, dict)
        assert {name: count for name, count in outcomes.items() if count} == {"split": 24}
        assert state["inFlight"] == {"requests": 0, "queued": 0, "settling": 0, "prefill": 0, "decode": 0}
    await _check_metrics(program)
    first, second = program.workers()
    os.kill(first, signal.SIGKILL)
    await _replaced(program, first)
    assert second in program.workers()
    await _check_metrics(program)  # with the counts of the dead one
    assert [await program.complete(Shape()) for _ in range(12)] == [Shape().expected()] * 12
    program.child.send_signal(signal.SIGTERM)
    code, errors = await program.end()
    assert code == 0
    assert errors.startswith("pdx gateway: a worker ended with code -9")
    assert errors.count("\n") == 1


async def _check_metrics(program: Program) -> None:
    """24 requests, half of them streams, are counted once, whichever worker served them."""
    page = (await program.world.call("GET", f"http://{program.admin}/metrics")).raw.decode()
    found = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line[0] != "#"}
    counts = {
        phase: found[f'pdx_phase_seconds_bucket{{le="+Inf",phase="{phase}"}}'] for phase in ("first_token", "total")
    }
    assert counts == {"first_token": 12, "total": 24}
    assert found['pdx_phase_seconds_count{phase="to_prefill"}'] == 24
    for policy, role in (("ExpectedWait", "prefill"), ("LeastITL", "decode")):
        assert found[f'pdx_endpoint_selections_total{{policy="{policy}",role="{role}"}}'] == 24
    assert found["pdx_response_chunks_total"] >= 24
    name = program.world.p.url.removeprefix("http://")
    assert found[f'pdx_prefill_kv_pinned{{endpoint="{name}"}}'] == 0


async def test_all_processes_write_json(make_world: MakeWorld, programs: list[Program]) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    program = await _start(programs, world, 2, "--log-format=JSON", "--slow-seconds=0")
    for _ in range(4):
        await program.complete(Shape())
    await program.state()  # every worker answers it after its open work, so its lines are written
    victim = program.workers()[0]
    os.kill(victim, signal.SIGKILL)
    await _replaced(program, victim)
    program.child.send_signal(signal.SIGTERM)
    code, errors = await program.end()
    lines = [json.loads(line) for line in errors.splitlines()]
    messages = [line["message"] for line in lines]
    assert (code, messages.count("request was slow"), len(messages)) == (0, 4, 5)
    assert any(message.startswith("a worker ended with code -9") for message in messages)
    assert all(set(line) >= {"time", "level", "logger", "message"} for line in lines)
    assert [line["outcome"] for line in lines if "outcome" in line] == ["split"] * 4


async def test_two_workers_find_the_least_loaded(make_world: MakeWorld, programs: list[Program]) -> None:
    """A worker alone would spread only its own streams, and the eight engines would get unequal numbers."""
    world = await make_world(Order.PREFILL_FIRST, 0, 8, d={"decode_token_seconds": 0.02}, gateway=False)
    program = await _start(programs, world, 2, "--decode-policy=LeastRequests")
    host, port = program.listen.split(":")
    writers: list[asyncio.StreamWriter] = []

    def running() -> list[int]:
        return [engine.counts.running_now for engine in world.decode]

    async def fill(each: int) -> list[int]:
        """Open streams, one after the other, until every engine can have this many."""
        while sum(running()) < 8 * each:
            reader, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
            writer.write(request_of(Shape(stream=True).body(tokens=3000)))
            await reader.readuntil(b"data: ")
        return running()

    assert await fill(1) == [1] * 8
    assert await fill(2) == [2] * 8
    victim, _ = program.workers()
    os.kill(victim, signal.SIGKILL)
    await eventually(lambda: sum(running()) < 16, what="its streams end")
    agreed = 0
    async with asyncio.timeout(20):
        while agreed < 20:  # in a row: while its streams end, both numbers fall, and may be equal by chance
            await asyncio.sleep(0.02)
            # Until the engines report again, the legs of the dead worker count as another gateway's.
            agrees = await program.in_flight() == sum(running()) and await program.least_limit() > 2
            agreed = agreed + 1 if agrees else 0
    endpoints = (await program.state())["endpoints"]
    assert await fill(2) == [2] * 8, f"the legs of the dead worker are not counted: {endpoints}"
    await world.d.kill()
    async with asyncio.timeout(10):
        while await program.not_warm() != {world.d.url: "Cold"}:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.02)
    assert (await program.state())["ejections"] == {
        "lost": 1,
        "timeout": 0,
        "consecutive_errors": 0,
        "stalled": 0,
        "failed_handoffs": 0,
        "overridden": 0,
    }, "both have reported it"
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("workers", [1, 2])
async def test_sigterm_finishes_open_streams(workers: int, make_world: MakeWorld, programs: list[Program]) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False, d={"decode_token_seconds": 0.01})
    program = await _start(programs, world, workers)
    host, port = program.listen.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    idle_reader, idle_writer = await asyncio.open_connection(host, int(port))
    writer.write(request_of(Shape(stream=True).body(tokens=60)))
    await reader.readuntil(b"data: ")
    program.child.send_signal(signal.SIGTERM)
    rest = await reader.read(-1)
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert await idle_reader.read(-1) == b""
    assert await program.end() == (0, "")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))
    for each in (writer, idle_writer):
        each.close()


async def test_a_worker_that_dies_cuts_its_streams(make_world: MakeWorld, programs: list[Program]) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False, d={"decode_token_seconds": 0.01})
    program = await _start(programs, world, 2, "--decode-policy=LeastRequests")
    host, port = program.listen.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request_of(Shape(stream=True).body(tokens=3000)))
    await reader.readuntil(b"data: ")
    for pid in program.workers():
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ConnectionResetError):
        assert not (await reader.read(-1)).endswith(b"0\r\n\r\n")
    await eventually(lambda: world.d.counts.aborted == 1 and not world.d.counts.running_now)
    await eventually(lambda: len(program.workers()) == 2, 10.0, "new workers")
    assert await program.complete(Shape()) == Shape().expected()
    program.child.send_signal(signal.SIGTERM)
    assert (await program.end())[0] == 0
    writer.close()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("which", ["listen", "admin"])
async def test_a_port_in_use_is_one_sentence(
    workers: int, which: str, make_world: MakeWorld, programs: list[Program]
) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    program = Program(world, workers)
    programs.append(program)
    with socket.socket() as sock:
        host, port = getattr(program, which).split(":")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a test that has just run may have had this port
        sock.bind((host, int(port)))
        sock.listen()
        await program.start()
        code, errors = await program.end()
    assert code == 2
    assert errors.count("\n") == 1
    assert getattr(program, which) in errors
    assert "Address already in use" in errors
