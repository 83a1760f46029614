"""LMCache: P stores into an `lmcache server`, D retrieves from it. Real vLLM engines and a real server, over TCP."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from pdx_api.connectors.lmcache import LMCache
from pdx_api.names import Role
from tests.engines.conftest import Pair
from tests.engines.support.campaign import SHAPES, fresh, revive
from tests.engines.support.harness import (
    Engine,
    Gateway,
    SideProcess,
    complete,
    eventually,
    make_prompt,
    running,
    tiny_spec,
)
from tests.engines.support.lmcache import (
    RELOADS,
    check,
    check_alone,
    check_foreign,
    check_hang_ups,
    check_moves_again,
    check_serves,
    check_shape,
    environment,
    needs_lmcache,
)
from tests.engines.support.probing import check_probe

pytestmark = needs_lmcache
_seeds = itertools.count(fresh() + 500)


@dataclass(frozen=True)
class Served(Pair):
    server: SideProcess


@pytest.fixture(scope="module")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    spec, logs = tiny_spec(tiny_model, connector="LMCache", poolSize="1Gi"), tmp_path_factory.mktemp("lmcache")
    server = SideProcess(spec, LMCache().services[0], logs)
    prefill, decode = (
        Engine(spec, role, logs, services=(server,), env=RELOADS) for role in (Role.PREFILL, Role.DECODE)
    )
    with pytest.MonkeyPatch.context() as patch:
        environment(patch)
        with running(server), running(prefill, decode):
            yield Served(prefill, decode, logs, server)


async def test_pdx_probe(pair: Served) -> None:
    await check_probe(pair.prefill, pair.decode)


@pytest.mark.parametrize(("chat", "stream"), SHAPES)
async def test_text_is_a_single_engines_and_the_prompt_came_from_outside(
    chat: bool, stream: bool, session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    await check_shape(session, front, pair, _seeds, chat=chat, stream=stream)


async def test_decode_never_reads_before_prefill_has_stored(
    session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    """Ten prompts, one behind the other and without a pause between the legs: none of their chunks is missed."""
    bodies = [{"prompt": make_prompt(next(_seeds), 300), "max_tokens": 8} for _ in range(10)]
    found = [await check(session, front, pair, body) for body in bodies]
    assert any(found)


async def test_without_prefill_nothing_comes_from_outside(
    session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    await check_alone(session, pair, make_prompt(next(_seeds), 120))


async def test_foreign_kv_shows_in_the_text(
    session: aiohttp.ClientSession, pair: Served, tiny_model: Path, tmp_path: Path
) -> None:
    await check_foreign(session, pair, make_prompt(next(_seeds), 120), tiny_model, tmp_path / "foreign")


async def test_clients_that_leave_end_no_engine(session: aiohttp.ClientSession, front: Gateway, pair: Served) -> None:
    await revive(pair.prefill, pair.decode)
    await check_hang_ups(session, front, pair, _seeds)


async def test_a_dead_server_costs_time_and_comes_back(
    session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    """Engines compute by themselves while it is away, and use it again without a restart."""
    await revive(pair.prefill, pair.decode)
    await check_moves_again(session, front, pair, _seeds)  # from its first load on D looks after its server
    await asyncio.to_thread(pair.server.kill)
    await check_serves(session, front, pair.prefill, make_prompt(next(_seeds), 120))
    pair.server.start()
    await asyncio.to_thread(pair.server.wait_until_healthy)
    await check_moves_again(session, front, pair, _seeds)


async def test_a_dead_decode_takes_no_kv_with_it(session: aiohttp.ClientSession, front: Gateway, pair: Served) -> None:
    """The only D: clients get 503 with Retry-After. When it runs again, it finds what P has stored."""
    await revive(pair.prefill, pair.decode)
    body = {"prompt": make_prompt(fresh() + 51, 120), "max_tokens": 16}
    expected = (await complete(session, pair.prefill.url, body)).text
    await asyncio.to_thread(pair.decode.kill)
    refused = await complete(session, front.url, body)
    assert (refused.status, "retry-after" in refused.headers) == (503, True)
    await revive(pair.decode)
    deadline = time.monotonic() + 60
    while (got := await complete(session, front.url, body)).status != 200:
        assert time.monotonic() < deadline, got
        await asyncio.sleep(0.5)
    assert got.text == expected
    assert pair.decode.external_tokens > 0


async def test_a_dead_prefill_is_survived(session: aiohttp.ClientSession, front: Gateway, pair: Served) -> None:
    """D serves alone, and finds what P has stored before its end. P does not come back."""
    await revive(pair.prefill)
    body = {"prompt": make_prompt(fresh() + 41, 120), "max_tokens": 16}
    expected = (await complete(session, pair.prefill.url, body)).text
    await asyncio.to_thread(pair.prefill.kill)
    before = pair.decode.external_tokens
    got = await complete(session, front.url, body)
    assert (got.status, got.text) == (200, expected)
    await eventually(lambda: pair.decode.external_tokens > before, 20, "what P has stored is gone with it")
