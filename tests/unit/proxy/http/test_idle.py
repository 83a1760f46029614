"""The idle limit and the deadline of a relayed answer."""

import asyncio
import time

import pytest

from pdx_proxy.http.upstream.failures import DeadlineExceeded, RequestExpired
from tests.unit.proxy.http.test_connection import CHUNKED
from tests.unit.proxy.serving.test_relay import serving

IDLE = 0.2
BEGUN = CHUNKED.index(b"\r\n\r\n") + 4
EVENT = len(b"b\r\ndata: one\n\n\r\n")


async def test_a_silent_engine_is_idle() -> None:
    _, connection, _, _ = await serving(CHUNKED[:BEGUN])
    began = time.monotonic()
    connection.watch_idle(IDLE, began + 1e9)
    with pytest.raises(DeadlineExceeded, match=r"0\.2 s"):
        await connection.whole()
    assert time.monotonic() - began >= IDLE * 0.9


async def test_an_occasional_byte_is_enough() -> None:
    _, connection, _, _ = await serving(CHUNKED[:BEGUN])
    connection.watch_idle(IDLE, asyncio.get_running_loop().time() + 60)
    waiting = asyncio.ensure_future(connection.whole())
    for begin in range(BEGUN, BEGUN + EVENT):
        await asyncio.sleep(IDLE / 8)
        connection.data_received(CHUNKED[begin : begin + 1])
    assert not waiting.done()
    connection.data_received(CHUNKED[BEGUN + EVENT :])
    assert (await waiting).complete


async def test_a_paused_engine_is_not_idle() -> None:
    """The client is slow: the engine counts as idle only after reading resumes."""
    _, connection, _, _ = await serving(CHUNKED[:BEGUN])
    connection.watch_idle(IDLE, asyncio.get_running_loop().time() + 60)
    connection.pause()
    waiting = asyncio.ensure_future(connection.whole())
    await asyncio.sleep(2 * IDLE)
    assert not waiting.done()
    connection.resume()
    with pytest.raises(DeadlineExceeded):
        await waiting


async def test_the_request_expires() -> None:
    """Whatever arrives, and whether reading is paused or not."""
    for paused in (False, True):
        _, connection, _, _ = await serving(CHUNKED[:BEGUN])
        connection.watch_idle(60.0, asyncio.get_running_loop().time() + 0.05)
        if paused:
            connection.pause()
        with pytest.raises(RequestExpired):
            await connection.whole()


async def test_a_complete_answer_is_not_watched() -> None:
    """The idle limit of one answer does not end the next answer on the same connection."""
    leg, connection, _, _ = await serving(CHUNKED[:BEGUN])
    connection.watch_idle(0.04, asyncio.get_running_loop().time() + 60)
    connection.data_received(CHUNKED[BEGUN:])
    await connection.whole()
    leg.send("POST", "/", (), b"{}")
    connection.set_timeout(60.0)
    waiting = asyncio.ensure_future(connection.head())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    connection.data_received(CHUNKED)
    assert (await waiting).status == 200
