"""Workers that stop, spin, die or cannot be started, and what clients and /readyz see of it."""

import asyncio
import errno
import json
import os
import signal
import socket
from collections import Counter
from pathlib import Path

import pytest

from pdx_api.names import Order
from pdx_proxy.config.settings import Address
from pdx_proxy.http.downstream.closing import has_backlog
from pdx_proxy.http.downstream.exchange import Exchange, answer
from pdx_proxy.http.downstream.listener import Listener
from pdx_proxy.process import liveness, supervisor
from pdx_proxy.process.liveness import Limits
from pdx_proxy.process.supervisor import WorkerSupervisor
from pdx_proxy.process.workers import ProcessWorkers, address_of, bind
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually, request_of
from tests.component.process.test_workers import Program, programs  # noqa: F401 (a fixture)

SPIN = """
import signal

def spin(*_):
    while True:
        pass

signal.signal(signal.SIGUSR1, spin)
"""


def workers_of(world: World) -> ProcessWorkers:
    workers = world.gateway._workers
    assert isinstance(workers, ProcessWorkers)
    return workers


def pids() -> list[int]:
    """Return the pids of this process's workers, the oldest first."""
    found = []
    for pid in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"pdx_proxy.process.worker_process" in command:
            found.append(pid)
    return sorted(found)


async def start(make_world: MakeWorld) -> World:
    world = await make_world(Order.PREFILL_FIRST, workers=2)
    await eventually(lambda: workers_of(world).serving == 2, 60.0, "both workers serve")
    return world


def refuses(host: str, port: int) -> bool:
    """Whether no socket listens. The kernel drops the SYN of a socket that is about to be closed."""
    with socket.socket() as client:
        client.settimeout(0.05)
        try:
            client.connect((host, port))
        except ConnectionRefusedError:
            return True
        except TimeoutError:
            pass
    return False


async def ready(world: World) -> tuple[int, str]:
    reply = await world.call("GET", f"{world.admin}/readyz")
    return reply.status, reply.raw.decode()


async def serves(world: World, requests: int = 8) -> None:
    """Clients get their answers, however long a worker's successor takes. Most likely each worker gets some of them."""
    clients = [await world.raw(Shape().body(), head="Connection: close\r\n") for _ in range(requests)]
    for reader, writer in clients:
        answer = await reader.read(-1)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"] == Shape().expected()
        writer.close()


async def test_a_stopped_worker_is_replaced(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    world = await start(make_world)
    victim, other = pids()
    os.kill(victim, signal.SIGSTOP)
    await serves(world)  # those that the kernel gives to the stopped one wait for its successor
    await eventually(lambda: victim not in pids() and len(pids()) == 2, 60.0, "another worker")
    assert other in pids()
    assert "a worker was stopped by a signal; another starts in" in caplog.text
    await eventually(lambda: workers_of(world).serving == 2, 60.0, "it serves")
    await serves(world)


async def test_a_worker_that_spins_is_replaced(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SPIN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setattr(liveness, "SERVING", Limits(stopped=60.0, sleeping=60.0, silent=3.0, cpu=0.5))
    world = await start(make_world)
    victim, other = pids()
    os.kill(victim, signal.SIGUSR1)
    await eventually(lambda: victim not in pids() and len(pids()) == 2, 100.0, "another worker")
    assert other in pids()
    assert "a worker computes and serves nothing; another starts in" in caplog.text
    await serves(world)


async def test_all_workers_dead_and_no_start_succeeds(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/readyz fails, a waiting client gets a 503, a new one is refused, and the gateway recovers."""
    world = await start(make_world)
    assert await ready(world) == (200, "")
    spawn, host, port = WorkerSupervisor._spawn, *world.gateway.listen
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE", 2.0)

    async def fail(*_: object) -> asyncio.subprocess.Process:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(WorkerSupervisor, "_spawn", fail)
    for pid in pids():
        os.kill(pid, signal.SIGKILL)
    await eventually(lambda: workers_of(world).serving == 0, what="the channels end")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request_of(Shape().body()))
    assert await ready(world) == (503, "no worker serves")
    assert (await reader.read(-1)).startswith(b"HTTP/1.1 503 ")
    writer.close()
    await eventually(lambda: refuses(host, port), 60.0, "new connections are refused")
    assert await ready(world) == (503, "no worker serves")
    assert "a worker failed: BlockingIOError" in caplog.text
    monkeypatch.setattr(WorkerSupervisor, "_spawn", spawn)
    await eventually(lambda: workers_of(world).serving == 2, 60.0, "both workers serve")
    assert await ready(world) == (200, "")
    await serves(world)


async def test_an_error_of_any_kind_starts_the_worker_again(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await start(make_world)
    workers, failures = workers_of(world), ["can't pickle it", "no such thing"]
    each, other = workers._supervisors
    first_frames = each._context.first_frames

    def fail() -> object:
        if failures:
            raise TypeError(failures.pop())
        return first_frames()

    object.__setattr__(each._context, "first_frames", fail)
    os.kill(pids()[0], signal.SIGKILL)
    await eventually(lambda: not failures and workers.serving == 2, 60.0, "it serves")
    assert caplog.text.count("a worker failed: TypeError") == 2
    assert not each.task.done()
    assert not other.task.done()


async def test_connections_in_the_backlog_are_served(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker shuts down before it has accepted them. It listens until its accept queue is empty."""
    queued: list[bool] = []

    def watch(sock: socket.socket) -> bool:
        queued.append(has_backlog(sock))
        return queued[-1]

    monkeypatch.setattr("pdx_proxy.http.downstream.listener.has_backlog", watch)
    world = await make_world(Order.PREFILL_FIRST)
    address = (world.gateway.listen.host, world.gateway.listen.port)
    idle = await asyncio.open_connection(*address)
    clients = []
    for _ in range(20):
        clients.append(client := socket.create_connection(address))
        client.sendall(request_of(Shape().body()))
    late = socket.create_connection(address)
    world.sent += 21
    stopping = asyncio.create_task(world.worker.stop())
    assert await idle[0].read(-1) == b""
    late.sendall(request_of(Shape().body()))
    for client in (*clients, late):
        reader, writer = await asyncio.open_connection(sock=client)
        answer = await reader.read(-1)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nconnection: close\r\n" in answer
        writer.close()
    await stopping
    assert queued[-1:] == [False]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    idle[1].close()


async def test_an_incomplete_head_is_answered(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdx_proxy.http.downstream.http1._LINGER_SECONDS", 0.5)
    monkeypatch.setattr("pdx_proxy.http.downstream.listener._SWEEP_SECONDS", 0.1)
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await asyncio.open_connection(*world.gateway.listen)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\n")
    await asyncio.sleep(0)
    await world.worker.stop()
    assert (await reader.read(-1)).startswith(b"HTTP/1.1 503 ")
    writer.close()


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"], ids=["fast", "fallback"])
async def test_a_slow_reader_gets_its_last_bytes(path: str) -> None:
    """The answer is complete for the gateway, but the client has not read it when the gateway shuts down."""
    body, answered = b"x" * 8_000_000, asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        await exchange.body()
        answer(exchange, 200, body, {})
        answered.set()

    sock = bind(Address("127.0.0.1", 0), shared=False)
    listener = Listener(handle, max_body_bytes=1000, send_seconds=60.0)
    await listener.start(sock)
    reader, writer = await asyncio.open_connection(*address_of(sock), limit=1024)  # reads no more than that ahead
    writer.write(request_of({}, path))
    await answered.wait()
    await listener.close(0.0)
    finishing = asyncio.create_task(listener.finish(300.0))
    await asyncio.wait([finishing], timeout=0.2)
    assert not finishing.done()
    assert (await reader.read(-1)).endswith(b"\r\n\r\n" + body)
    writer.close()
    await finishing


async def test_no_connection_is_reset_while_the_gateway_ends(
    make_world: MakeWorld,
    programs: list[Program],  # noqa: F811
) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    program = Program(world, 2)
    programs.append(program)
    await program.start()
    await program.warm()
    host, port = program.listen.split(":")
    results: Counter[str] = Counter()

    async def connect_again_and_again() -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
            except ConnectionRefusedError:
                results["refused"] += 1
                return
            try:
                writer.write(request_of(Shape().body(), head="Connection: close\r\n"))
                results[(await reader.read(-1))[9:12].decode() or "nothing"] += 1
            except ConnectionError:
                results["reset"] += 1
            writer.close()

    clients = [asyncio.create_task(connect_again_and_again()) for _ in range(8)]
    await eventually(lambda: results["200"] > 20, 60.0, "requests")
    program.child.send_signal(signal.SIGTERM)
    assert await program.end() == (0, "")
    await asyncio.gather(*clients)
    assert set(results) <= {"200", "503", "refused"}, results
    assert results["refused"] == 8


async def test_a_worker_serves_only_after_its_first_snapshot(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listening socket has connections at once, and would answer them that no engine is ready."""
    publish = WorkerSupervisor.publish
    monkeypatch.setattr(WorkerSupervisor, "publish", lambda _: None)
    world = await make_world(Order.PREFILL_FIRST, workers=2)
    workers = workers_of(world)
    served = asyncio.create_task(serves(world))
    async with asyncio.timeout(60):
        while not all(each.last for each in workers._supervisors):  # each reads its messages
            await workers.report()
    assert workers.serving == 0
    assert await ready(world) == (503, "no worker serves")
    monkeypatch.setattr(WorkerSupervisor, "publish", publish)
    for each in workers._supervisors:
        each.publish()
    await eventually(lambda: workers.serving == 2, 60.0, "both serve")
    await served


async def test_a_worker_that_ends_during_a_report_is_counted_once(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await start(make_world)
    await serves(world, 16)
    workers = workers_of(world)
    first, pid = workers._supervisors[0], pids()[0]
    refresh = first.refresh

    async def end_after_it() -> None:
        await refresh()
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: first.last is None, 60.0, "it has ended")

    monkeypatch.setattr(first, "refresh", end_after_it)
    counts = [(await workers.report())["outcomes"]["split"]]
    monkeypatch.setattr(first, "refresh", refresh)
    counts.append((await workers.report())["outcomes"]["split"])
    assert counts == [16, 16]
