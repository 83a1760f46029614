"""Relaying: framing, flow control, and broken answers."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from pdx_api.names import Role
from pdx_proxy.balancing.load import Load, Slot
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.observer import EndpointObserver
from pdx_proxy.engines.outlier_detection import OutlierDetector
from pdx_proxy.http.downstream.exchange import Pausable, answer
from pdx_proxy.http.upstream.connection import Connection
from pdx_proxy.http.upstream.connection_pool import ConnectionPool
from pdx_proxy.serving.relay import relay
from pdx_proxy.telemetry.counters import Counters
from tests.unit.proxy.http.test_connection import CHUNKED, EVENTS, SIZED, Wire


class Client:
    """An exchange that keeps what is written; `slow` is a client whose buffer runs over at every write."""

    def __init__(self, *, method: str = "POST", chunks: bool = True, slow: bool = False) -> None:
        self.method, self.path, self.chunks, self.begun, self.closes = method, "/", chunks, False, False
        self.query, self.cors = "", b""
        self.headers: Mapping[str, str] = {}
        self.data, self.cut, self._slow = b"", False, slow
        self.upstream: Pausable | None = None
        self.size: int | None = 0
        self.peer = ""

    def count_body(self, count: Callable[[int], None]) -> None:
        pass

    def drop_body(self) -> None:
        pass

    async def body(self) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        self.begun = True
        self.data += data
        if self._slow and self.upstream is not None:
            self.upstream.pause()

    def bind_upstream(self, upstream: Pausable | None) -> None:
        self.upstream = upstream

    def allow_origin(self, lines: bytes) -> None:
        self.cors = lines

    def close_after(self) -> None:
        self.closes = True

    def abort(self) -> None:
        self.cut = True

    def break_off(self) -> None:
        self.cut = True


async def serving(before: bytes) -> tuple[Leg, Connection, Wire, Load]:
    load = Load()
    endpoint = Endpoint(EndpointSpec(Address("d", 1), Role.DECODE))
    observer = EndpointObserver(load, OutlierDetector(5), lambda _: None)
    pool = ConnectionPool(idle_seconds=9, connect_seconds=1)
    leg = Leg(pool, observer, Slot(load, endpoint))
    made, wire = Connection("d:1", asyncio.get_running_loop()), Wire()
    made.connection_made(wire)
    made.address = endpoint.spec.address
    pool._open[made.address] = {made}
    leg._connection = made
    leg.send("POST", "/", (), b"{}")
    made.data_received(before)
    return leg, made, wire, load


async def _relay(
    client: Client, raw: bytes, first: int, step: int, lost: bool = False
) -> tuple[bool, Wire, Connection]:
    leg, made, wire, load = await serving(raw[:first])
    task = asyncio.ensure_future(relay(client, leg, {"x": "y"}, 60.0, Counters()))
    await asyncio.sleep(0)
    for begin in range(first, len(raw), step):
        made.data_received(raw[begin : begin + step])
    if lost:
        made.connection_lost(None)
    whole = await task is None
    leg.end()
    assert not load.view()
    return whole, wire, made


@pytest.mark.parametrize("step", [1, 5, 1000])
@pytest.mark.parametrize("raw", [CHUNKED, SIZED])
@pytest.mark.parametrize("chunks", [True, False])
async def test_the_body_arrives_as_it_came(raw: bytes, chunks: bool, step: int) -> None:
    client = Client(chunks=chunks)
    first = raw.index(b"\r\n\r\n") + 6
    whole, _, made = await _relay(client, raw, first, step)
    assert whole
    assert made.reusable
    head, _, body = client.data.partition(b"\r\n\r\n")
    if raw is SIZED or not chunks:
        assert body == EVENTS
    else:
        assert body == raw.split(b"\r\n\r\n", 1)[1]
    assert (b"connection: close" in head) is client.closes is (raw is CHUNKED and not chunks)


async def test_a_paused_connection_reads_again_for_the_next_client() -> None:
    """The last bytes of an answer fill a slow client's buffer: only the relay can resume the connection."""
    _, wire, made = await _relay(Client(slow=True), CHUNKED, CHUNKED.index(b"\r\n\r\n") + 6, 1000)
    assert made.reusable
    assert wire.reading


@pytest.mark.parametrize("chunks", [True, False])
@pytest.mark.parametrize("step", [1, 3, 1000])
async def test_a_lost_engine_is_never_an_end(step: int, chunks: bool) -> None:
    first = CHUNKED.index(b"\r\n\r\n") + 6
    for end in range(first, len(CHUNKED)):
        client = Client(chunks=chunks)
        whole, _, _ = await _relay(client, CHUNKED[:end], first, step, lost=True)
        assert not whole
        if client.cut:
            assert not client.data.endswith(b"0\r\n\r\n")
        else:
            assert chunks
            assert CHUNKED[:end].endswith(b"\n\n\r\n")
            assert b'"code":500' in client.data
            assert client.data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert not client.closes


async def test_chunks_are_counted_while_they_are_relayed() -> None:
    counters, first, step = Counters(), CHUNKED.index(b"\r\n\r\n") + 6, 5
    leg, connection, _, _ = await serving(CHUNKED[:first])
    task = asyncio.ensure_future(relay(Client(), leg, {}, 60.0, counters))
    await asyncio.sleep(0)
    for number, begin in enumerate(range(first, len(CHUNKED), step)):
        assert counters.report({})["chunks"] == 1 + number
        connection.data_received(CHUNKED[begin : begin + step])
    written = counters.report({})["chunks"]
    await task
    assert counters.report({})["chunks"] == counters.chunks == written
    assert not counters.relays
    leg.end()


@pytest.mark.parametrize(
    ("chunks", "closes", "header"),
    [(True, False, None), (True, True, b"close"), (False, False, b"keep-alive"), (False, True, b"close")],
)
def test_the_connection_header(chunks: bool, closes: bool, header: bytes | None) -> None:
    """A client of HTTP/1.0 that gets none reads until the connection ends."""
    client = Client(chunks=chunks)
    client.closes = closes
    client.cors = b"access-control-allow-origin: *\r\n"
    answer(client, 405, b"body", {})
    head, _, body = client.data.partition(b"\r\n\r\n")
    found = [line.split(b": ")[1] for line in head.split(b"\r\n") if line.startswith(b"connection: ")]
    assert (found, body) == ([] if header is None else [header], b"body")
    assert b"\r\naccess-control-allow-origin: *\r\n" in head
    assert b"\r\ndate: " in head
