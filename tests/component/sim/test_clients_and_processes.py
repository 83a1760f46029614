"""The helpers of component tests: a client that reads nothing, and an engine whose process is stopped."""

import asyncio
from dataclasses import replace

import aiohttp
import pytest

from pdx_sim import SimEngine
from tests.component.engine_process import EngineProcess
from tests.component.silent_client import SilentClient
from tests.component.sim.conftest import FAST, until


async def test_an_answer_to_a_silent_client_stays_in_the_engine() -> None:
    async with SimEngine(replace(FAST, max_model_len=20_000)) as engine:
        body = {"prompt": "x", "max_tokens": 15_000, "stream": True, "ignore_eos": True}
        async with SilentClient("127.0.0.1", engine.port) as client:
            await client.send("/v1/completions", body)
            await until(lambda: engine.counts.finished["length"])
            assert engine.core.live == 0
            assert (await client.read()).startswith(b"HTTP/1.1 200 OK")
            assert engine._runner is not None
            (connection,) = list(getattr(engine._runner.server, "connections", ()))
            assert connection.transport.get_write_buffer_size() > 0, "what the client does not read"


async def test_a_stopped_process_accepts_connections_and_answers_when_it_continues(unused_tcp_port: int) -> None:
    async with EngineProcess(replace(FAST, port=unused_tcp_port)) as engine, aiohttp.ClientSession() as session:
        engine.stop()
        pending = asyncio.create_task(session.get(f"{engine.url}/health"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(pending), 0.2)
        engine.resume()
        async with await pending as response:
            assert response.status == 200
