"""Clients that accept nothing, leave unseen, or send heads alone; and peers that vanish without a FIN."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_proxy.config.settings import Limits
from pdx_proxy.http.downstream import http1, listener
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually, request_of

LARGE = {"max_model_len": 80_000, "decode_token_seconds": 0.0}
TOKENS = 60_000
SEND_SECONDS = 0.3
PATHS = {"fast": "/v1/completions", "fallback": "/v1/completions?a=b"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway inspects its clients often, and the kernel does not end connections by itself."""
    monkeypatch.setattr(listener, "_SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(http1, "detect_lost_peer", lambda *_: None)


def _small_buffers(world: World) -> None:
    """Let the kernel buffer little for clients that connect from now on."""
    server = world.worker._listener._server
    assert server is not None
    for sock in server.sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


Send = Callable[[World, bytes], Awaitable[socket.socket]]


@pytest.fixture
def send() -> Iterator[Send]:
    """Open a client that sends a request and reads nothing."""
    clients: list[socket.socket] = []

    async def made(world: World, request: bytes) -> socket.socket:
        loop, client = asyncio.get_running_loop(), socket.socket()
        clients.append(client)
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(client, (world.gateway.listen.host, world.gateway.listen.port))
        await loop.sock_sendall(client, request)
        return client

    yield made
    for client in clients:
        client.close()


async def _read_all(client: socket.socket) -> bytes:
    received = b""
    while piece := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
        received += piece
    return received


def _connections(world: World) -> int:
    owner = world.worker._listener
    return owner.most_connections - owner.room()


STATES: dict[str, tuple[Shape, str, str]] = {
    "stream": (Shape(stream=True), "", "client_left"),
    "whole": (Shape(), "", "split"),
    "closing": (Shape(), "Connection: close\r\n", "split"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("state", STATES)
async def test_a_client_that_reads_nothing_is_cut(state: str, path: str, make_world: MakeWorld, send: Send) -> None:
    """In a stream, behind an answer that was written in one piece, and while its connection closes."""
    shape, head, outcome = STATES[state]
    world = await make_world(Order.PREFILL_FIRST, sim=LARGE, send_seconds=SEND_SECONDS)
    world.allowed.orphan_tokens = TOKENS
    _small_buffers(world)
    world.sent += 1
    client = await send(world, request_of(shape.body(tokens=TOKENS), PATHS[path], head=head))
    await eventually(lambda: world.report["outcomes"][outcome] == 1)
    await eventually(lambda: not _connections(world), what="its connection is gone")
    await eventually(lambda: not world.d.counts.running_now)
    with pytest.raises(ConnectionResetError):
        await _read_all(client)


async def test_answers_that_nobody_reads_take_no_room(make_world: MakeWorld, send: Send) -> None:
    """D has generated them. Their legs stay open, and are more than D has ever run."""
    world = await make_world(Order.PREFILL_FIRST, sim=LARGE, d={"decode_token_seconds": 1e-4})
    _small_buffers(world)
    d = world.endpoint(world.d).name
    clients: list[socket.socket] = []

    def have_all_been_generated() -> bool:
        return world.report["blocked"].get(d) == len(clients) and not world.d.counts.running_now

    for _ in range(3):
        world.sent += 4
        clients += [await send(world, request_of(Shape(stream=True).body(tokens=4000))) for _ in range(4)]
        await eventually(have_all_been_generated)
    assert (await world.complete()).text == Shape().expected()
    for client in clients:
        client.close()
    await eventually(lambda: not world.report["inFlight"]["requests"])
    assert not world.report["blocked"]
    assert await world.outcomes() == {"split": 1, "client_left": 12}


@pytest.mark.parametrize("path", PATHS)
async def test_a_pipelining_client_that_leaves_is_noticed(path: str, make_world: MakeWorld, send: Send) -> None:
    """It has sent so much ahead that the gateway does not read from it."""
    world = await make_world(Order.PREFILL_FIRST, d={"decode_token_seconds": 0.05})
    client = await send(world, request_of(Shape().body(tokens=200), PATHS[path]))
    world.sent += 1
    await eventually(lambda: world.d.counts.running_now)
    await asyncio.get_running_loop().sock_sendall(client, request_of(Shape().body("x" * 70_000)) * 2)
    client.close()
    await eventually(lambda: not world.report["inFlight"]["requests"])
    assert await world.outcomes() == {"client_left": 1}


@pytest.mark.parametrize("path", PATHS)
async def test_the_last_bytes_are_sent_before_the_process_ends(path: str, make_world: MakeWorld, send: Send) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim=LARGE)
    _small_buffers(world)
    world.sent += 1
    client = await send(world, request_of(Shape().body(tokens=TOKENS), PATHS[path], head="Connection: close\r\n"))
    await eventually(lambda: world.report["outcomes"]["split"] == 1)
    stopping = asyncio.create_task(world.gateway.stop())
    await asyncio.wait({stopping}, timeout=0.3)
    assert not stopping.done(), "the client has not received its answer"
    received = await _read_all(client)
    assert json.loads(received.partition(b"\r\n\r\n")[2])["choices"][0]["text"] == Shape().expected(tokens=TOKENS)
    await stopping
    world.control = None


@pytest.mark.parametrize("path", PATHS)
async def test_declared_bodies_take_nothing(path: str, make_world: MakeWorld, send: Send) -> None:
    """Neither a slot nor bytes: only what has arrived counts."""
    limits = Limits(max_in_flight_per_decode=1, max_requests=1, max_buffered_bytes=1 << 20)
    world = await make_world(Order.PREFILL_FIRST, limits=limits)
    head = request_of({}, PATHS[path]).partition(b"Content-Length")[0] + b"Content-Length: 900000\r\n\r\n"
    world.sent += 4
    clients = [await send(world, head + b'{"prompt":"') for _ in range(4)]
    await eventually(lambda: world.report["inFlight"]["requests"] == 4)
    usage = world.worker._admission.usage
    await eventually(lambda: usage.buffered == 44)
    assert (usage.in_flight, usage.waiting) == (0, 0)
    assert (await world.complete()).text == Shape().expected()
    for client in clients:
        client.close()
    await eventually(lambda: not world.report["inFlight"]["requests"])
    assert usage.buffered == 0
    assert await world.outcomes() == {"split": 1, "client_left": 4}


OPTIONS = {"idle": socket.TCP_KEEPIDLE, "interval": socket.TCP_KEEPINTVL, "lost": socket.TCP_USER_TIMEOUT}


def _options(transport: Any) -> dict[str, int]:
    sock = transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    return {name: sock.getsockopt(socket.IPPROTO_TCP, option) for name, option in OPTIONS.items()}


async def test_the_kernel_notices_peers_that_vanish(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost node sends no FIN. The options are those of the real limits."""
    monkeypatch.undo()
    world = await make_world(Order.PREFILL_FIRST)
    assert (await world.complete()).status == 200
    upstream = [connection for each in world.pool._open.values() for connection in each]
    assert upstream
    for connection in upstream:
        assert _options(connection.transport) == {"idle": 10, "interval": 5, "lost": 30_000}
    clients = list(world.worker._listener._connections)
    assert clients
    for client in clients:
        assert _options(client.transport) == {"idle": 10, "interval": 5, "lost": 60_000}
