"""A leg that is lost on a reused connection: sent once more if the engine cannot have begun it, and never later."""

import asyncio

import pytest

from pdx_api.names import Role
from pdx_proxy.balancing.load import Load, Slot
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.events import HealthCheckRequest
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.observer import EndpointObserver
from pdx_proxy.engines.outlier_detection import OutlierDetector
from pdx_proxy.handoff.failures import KVOverdue
from pdx_proxy.http.upstream.connection import Connection
from pdx_proxy.http.upstream.connection_pool import ConnectionPool
from pdx_proxy.http.upstream.failures import (
    BadAnswer,
    ClosedConnection,
    DeadlineExceeded,
    LostConnection,
    Reason,
)
from tests.unit.proxy.handoff.virtual_time import run_virtually
from tests.unit.proxy.http.test_connection import EMPTY, Wire

DECODE = Endpoint(EndpointSpec(Address("d", 1), Role.DECODE))


class OneIdle(ConnectionPool):
    """Has one idle connection, and opens new ones to engines that answer at once."""

    def __init__(self) -> None:
        super().__init__(idle_seconds=60.0, connect_seconds=1.0)
        self.replace_idle()
        self.connects = 0

    def replace_idle(self) -> None:
        self.idle = self._connected()
        self.idle.used = True

    def _connected(self) -> Connection:
        connection = Connection(DECODE.name, self._loop)
        connection.connection_made(Wire())
        return connection

    def take(self, address: Address, name: str) -> Connection | None:
        return self.idle

    async def connect(self, address: Address, name: str) -> Connection:
        self.connects += 1
        connection = self._connected()
        self._loop.call_soon(connection.data_received, EMPTY)
        return connection


@pytest.fixture
async def pool() -> OneIdle:
    return OneIdle()


async def _sent(pool: OneIdle, observer: EndpointObserver | None = None, *, once: bool = False) -> Leg:
    leg = Leg(pool, observer or EndpointObserver(Load(), OutlierDetector(5), lambda _: None), Slot(Load(), DECODE))
    await leg.connect()
    leg.send("POST", "/v1/completions", (), b"{}", once=once)
    return leg


async def test_an_immediate_loss_is_sent_again(pool: OneIdle) -> None:
    leg = await _sent(pool)
    pool.idle.connection_lost(None)
    assert (await leg.whole(5.0)).status == 200
    assert pool.connects == 1
    assert not leg._body, "a stream may last long, and its permit counts no body meanwhile"
    leg.end()


async def test_a_whole_answer_ends_the_count_of_those_that_broke_off(pool: OneIdle) -> None:
    """A P's answers are read whole, and none is relayed."""
    events: list[object] = []
    observer = EndpointObserver(Load(), OutlierDetector(2), events.append)
    for _ in range(2):
        observer.suspect(DECODE, ClosedConnection(DECODE.name, "connection lost"))
        leg = await _sent(pool, observer)
        pool.idle.connection_lost(None)
        await leg.whole(5.0)
        leg.end()
        pool.replace_idle()
    assert events == [HealthCheckRequest(DECODE.name, 0)]


async def test_a_leg_that_reads_kv_is_not_sent_again(pool: OneIdle) -> None:
    """Its engine may have begun: it would read KV a second time (vllm#52234)."""
    leg = await _sent(pool, once=True)
    pool.idle.connection_lost(None)
    with pytest.raises(LostConnection):
        await leg.first_event(5.0)
    assert pool.connects == 0
    leg.end()


HEADS = {
    "length": b"HTTP/1.1 %d X\r\ncontent-length: 99999999\r\n\r\n",
    "no length": b"HTTP/1.0 %d X\r\n\r\n",
    "a chunk": b"HTTP/1.1 %d X\r\ntransfer-encoding: chunked\r\n\r\n5555555\r\n",
}
KIB = 1024


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize(
    ("status", "given", "most"),
    [(200, 2048, 2048), (500, 2048, 1024), (400, 2048, 1024), (503, 64, 64), (200, 70, 70)],
)
async def test_a_whole_answer_is_bounded(pool: OneIdle, head: bytes, status: int, given: int, most: int) -> None:
    """A P that sends without end fails. Of a refusal or an error, the status counts. The connection is closed."""
    leg = await _sent(pool)
    waiting = asyncio.ensure_future(leg.whole(20.0, most=given * KIB) if given < 2048 else leg.whole(20.0))
    await asyncio.sleep(0)
    pool.idle.data_received(head % status + b"x" * most * KIB)
    await asyncio.sleep(0)
    assert not waiting.done()
    pool.idle.data_received(b"x")
    if status == 200:
        with pytest.raises(BadAnswer, match=f"more than {most * KIB} bytes") as raised:
            await waiting
        assert (raised.value.reason, raised.value.status) == (Reason.LOST, 502)
    else:
        assert (await waiting).status == status
    answer = leg.answer
    leg.end()
    assert not pool.idle.reusable
    assert not answer.content, "its failure lives as long as the request"


@pytest.mark.parametrize("size", [70 * KIB, 300 * KIB, 3000 * KIB])
async def test_a_stream_is_no_whole_answer(pool: OneIdle, size: int) -> None:
    leg = await _sent(pool)
    waiting = asyncio.ensure_future(leg.whole(20.0))
    await asyncio.sleep(0)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n"
    pool.idle.data_received(head % size + b"x" * size)
    with pytest.raises(BadAnswer, match="a stream"):
        await waiting
    leg.end()


@pytest.mark.parametrize(("status", "size", "fit"), [(200, 2000, 16), (500, 1000, 32), (404, 500, 65)])
async def test_the_large_answers_of_one_engine_are_bounded_together(
    pool: OneIdle, status: int, size: int, fit: int
) -> None:
    """Whoever reads them. Those of another engine, and later ones, have room."""
    legs, tasks = [], []
    for number in range(fit + 1):
        pool.replace_idle()
        leg = await _sent(pool)
        read = leg.whole(20.0) if status == 200 or number % 2 else leg.first_event(20.0)
        legs.append(leg)
        tasks.append(asyncio.ensure_future(read))
        await asyncio.sleep(0)
        pool.idle.data_received(HEADS["length"] % status + b"x" * size * KIB)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [*[False] * fit, True]
    with pytest.raises(BadAnswer, match="too many large answers"):
        await tasks[-1]
    assert pool.hold(Address("another", 1), 1)
    for leg, task in zip(legs, tasks, strict=True):
        task.cancel()
        leg.end()
    assert not pool._held.get(DECODE.address)


async def test_an_abandoned_request_is_not_sent_again(pool: OneIdle, monkeypatch: pytest.MonkeyPatch) -> None:
    leg, connect = await _sent(pool), pool.connect

    async def while_the_client_leaves(address: Address, name: str) -> Connection:
        leg.half_close()
        return await connect(address, name)

    monkeypatch.setattr(pool, "connect", while_the_client_leaves)
    pool.idle.connection_lost(None)
    with pytest.raises(LostConnection, match="abandoned"):
        await leg.whole(5.0)
    assert pool.connects == 1
    assert not leg.connection.reusable, "the connection is closed with the leg"
    leg.end()


async def test_a_loss_after_an_earlier_wait_is_not_sent_again(pool: OneIdle) -> None:
    """The limit counts from the sending, because the engine has had the request since then."""
    leg = await _sent(pool)
    with pytest.raises(DeadlineExceeded):
        await leg.head(0.15)
    asyncio.get_running_loop().call_soon(pool.idle.connection_lost, None)
    with pytest.raises(LostConnection):
        await leg.first_event(5.0)
    assert pool.connects == 0
    leg.end()


@pytest.mark.parametrize("flood", [b":\n\n", b":\r\n\r\n", b"\n\n", b"event: ping\ndata: {}\n\n"])
async def test_other_tasks_run_between_the_events_of_a_flood(flood: bytes, pool: OneIdle) -> None:
    leg = await _sent(pool)
    events = flood * 20_000 + b'data: {"choices":[{"text":"a"}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    pool.idle.data_received(head + b"%x\r\n%b\r\n" % (len(events), events))
    first, passes = asyncio.get_running_loop().create_task(leg.first_event(60.0)), 0
    while not first.done():
        await asyncio.sleep(0)
        passes += 1
    assert (await first).status == 200
    assert passes >= 20


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
OUTPUT = {
    "chat": b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
    "messages": b'event: message_start\ndata: {"type":"message_start"}\n\n',
}
ERROR = b'data: {"error":{"message":"m","type":"t","param":null,"code":500}}\n\n'


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _first_event(events: dict[float, bytes], interrupted: float = 1e9) -> float:
    """Return when the answer of an engine is open that sends these events; its deadline is 600 s."""
    pool, loop = OneIdle(), asyncio.get_running_loop()
    leg = await _sent(pool)
    pool.idle.data_received(STREAM)
    for after, event in events.items():
        loop.call_later(after, pool.idle.data_received, _chunk(event))
    loop.call_later(interrupted, leg.interrupt, KVOverdue(DeadlineExceeded("d", "late")))
    try:
        assert (await leg.first_event(600.0)).status == 200
        return loop.time()
    finally:
        leg.end()


@pytest.mark.parametrize("output", OUTPUT.values(), ids=OUTPUT)
def test_an_engine_that_has_produced_an_output_may_be_silent(output: bytes) -> None:
    """Its KV has arrived, so no hand-off is late."""
    assert run_virtually(_first_event({24.5: output, 900.0: output}, interrupted=25.0)) == pytest.approx(25.5)


@pytest.mark.parametrize("output", OUTPUT.values(), ids=OUTPUT)
def test_the_error_behind_a_first_output_ends_the_attempt(output: bytes) -> None:
    """vLLM sends the role also with an output that reports that KV could not be loaded."""
    with pytest.raises(BadAnswer) as raised:
        run_virtually(_first_event({24.5: output, 25.0: ERROR}))
    assert raised.value.reason is Reason.ERROR_EVENT


@pytest.mark.parametrize("event", [b'event: response.created\ndata: {"response":{}}\n\n', b": keep-alive\n\n"])
def test_what_an_engine_sends_before_any_output_proves_nothing(event: bytes) -> None:
    with pytest.raises(KVOverdue):
        run_virtually(_first_event({1.0: event, 900.0: event}, interrupted=25.0))
    with pytest.raises(DeadlineExceeded, match="600 s"):
        run_virtually(_first_event({1.0: event, 900.0: event}))
