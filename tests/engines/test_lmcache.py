"""LMCache: P stores into an `lmcache server`, D retrieves from it. Real vLLM engines and a real server, over TCP."""

import asyncio
import importlib.util
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pdx_api.connectors.lmcache import LMCache
from pdx_api.names import Order, Role
from tests.engines.campaign import fresh
from tests.engines.conftest import Pair
from tests.engines.harness import (
    Answer,
    Engine,
    Gateway,
    SideProcess,
    ask,
    eventually,
    gateway,
    running,
    tiny_spec,
    words,
)
from tests.engines.mooncake import libraries

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("lmcache") is None, reason="LMCache is not installed: run `make install-lmcache`"
)
CHUNK = 128
"""Tokens that are saved and found as one."""


@dataclass(frozen=True)
class Served(Pair):
    server: SideProcess


@pytest.fixture(scope="module")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    spec, logs = tiny_spec(tiny_model, connector="LMCache", poolSize="1Gi"), tmp_path_factory.mktemp("lmcache")
    server = SideProcess(spec, LMCache().services[0], logs)
    prefill, decode = (Engine(spec, role, logs, services=(server,)) for role in (Role.PREFILL, Role.DECODE))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in libraries().items():
            patch.setenv(name, value)
        with running(server), running(prefill, decode):
            yield Served(prefill, decode, logs, server)


@pytest.fixture(scope="module")
def front(pair: Served) -> Iterator[Gateway]:
    with gateway(Order.PREFILL_FIRST, [pair.prefill], [pair.decode], pair.logs) as found:
        yield found


async def _check(session: aiohttp.ClientSession, front: Gateway, pair: Served, body: dict[str, Any]) -> bool:
    """P's own text, and every whole chunk from outside; False for a prompt that ends with a chunk."""
    before = pair.decode.external_tokens
    got = await ask(session, front.url, body)
    alone = await ask(session, pair.prefill.url, body)  # P has computed the prompt, and decodes over its own KV
    assert (got.status, got.complete, got.text) == (200, True, alone.text)
    assert len(alone.text) > 10, "a text that shows nothing proves nothing"
    tokens = _tokens(got)
    moved = tokens // CHUNK * CHUNK
    assert moved > 0
    if tokens % CHUNK == 0:
        return False
    await eventually(lambda: pair.decode.external_tokens - before == moved, 5, f"{moved} tokens did not come")
    return True


def _tokens(answer: Answer) -> int:
    return int(answer.usage["prompt_tokens"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
async def test_text_is_a_single_engines_and_the_prompt_came_from_outside(
    chat: bool, stream: bool, session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    for number in itertools.count(fresh() + 10 * front.port + 2 * chat + stream, 7):
        prompt = words(number, 120)
        body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        body |= {"max_tokens": 24, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
        if await _check(session, front, pair, body):
            return


async def test_decode_never_looks_before_prefill_has_stored(
    session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    """Ten prompts, one behind the other and without a pause between the legs: none of their chunks is missed."""
    first = fresh() + 500
    found = [await _check(session, front, pair, {"prompt": words(first + n, 300), "max_tokens": 8}) for n in range(10)]
    assert any(found)


async def test_without_prefill_nothing_comes_from_outside(
    session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    """The control of the counter: what D is asked alone it computes."""
    before = pair.decode.metrics()
    answer = await ask(session, pair.decode.url, {"prompt": words(21, 120), "max_tokens": 8})
    after = pair.decode.metrics()
    assert after["external_kv_transfer"] == before["external_kv_transfer"]
    assert after["local_compute"] - before["local_compute"] == _tokens(answer)


async def test_a_dead_server_costs_time_and_comes_back(
    session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    """Engines compute by themselves while it is away, and use it again without a restart."""
    await asyncio.to_thread(pair.server.kill)
    body = {"prompt": words(31, 120), "max_tokens": 16}
    began = time.monotonic()
    got = await ask(session, front.url, body)
    assert time.monotonic() - began < 60
    assert (got.status, got.text) == (200, (await ask(session, pair.prefill.url, body)).text)
    pair.server.start()
    await asyncio.to_thread(pair.server.wait_until_healthy)
    seeds = itertools.count(700)

    async def moves() -> bool:
        before = pair.decode.external_tokens
        await ask(session, front.url, {"prompt": words(next(seeds), 120), "max_tokens": 4})
        return pair.decode.external_tokens > before

    deadline = time.monotonic() + 60
    while not await moves():
        assert time.monotonic() < deadline, "the server is not used again"
