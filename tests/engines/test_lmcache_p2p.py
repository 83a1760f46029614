"""LMCacheP2P: P's server keeps the KV, D's reads it. Real vLLM engines, servers and coordinator, over TCP."""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from pdx_api.connectors.lmcache_p2p import LMCacheP2P
from pdx_api.names import Role
from tests.engines.conftest import Pair
from tests.engines.support.campaign import SHAPES, fresh, revive
from tests.engines.support.harness import (
    Engine,
    Gateway,
    SideProcess,
    complete,
    make_prompt,
    running,
    tiny_spec,
)
from tests.engines.support.lmcache import (
    RELOADS,
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
_seeds = itertools.count(fresh() + 3_000_000)


@dataclass(frozen=True)
class Served(Pair):
    coordinator: SideProcess
    servers: dict[Role, SideProcess]
    """The one beside each engine."""


@pytest.fixture(scope="module")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    spec, logs = tiny_spec(tiny_model, connector="LMCacheP2P", poolSize="1Gi"), tmp_path_factory.mktemp("lmcache-p2p")
    found_by, server = LMCacheP2P().services
    coordinator = SideProcess(spec, found_by, logs)
    servers = {role: SideProcess(spec, server, logs, (coordinator,)) for role in (Role.PREFILL, Role.DECODE)}
    prefill, decode = (
        Engine(spec, role, logs, services=(coordinator, own), env=RELOADS) for role, own in servers.items()
    )
    with pytest.MonkeyPatch.context() as patch:
        environment(patch)
        with running(coordinator, *servers.values()), running(prefill, decode):
            yield Served(prefill, decode, logs, coordinator, servers)


async def test_pdx_probe(pair: Served) -> None:
    await check_probe(pair.prefill, pair.decode)


@pytest.mark.parametrize(("chat", "stream"), SHAPES)
async def test_text_is_a_single_engines_and_the_prompt_came_from_outside(
    chat: bool, stream: bool, session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    await check_shape(session, front, pair, _seeds, chat=chat, stream=stream)


async def test_foreign_kv_shows_in_the_text(
    session: aiohttp.ClientSession, pair: Served, tiny_model: Path, tmp_path: Path
) -> None:
    await check_foreign(session, pair, make_prompt(next(_seeds), 120), tiny_model, tmp_path / "foreign")


async def test_without_prefill_nothing_comes_from_outside(
    session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    await check_alone(session, pair, make_prompt(next(_seeds), 120))


async def test_clients_that_leave_end_no_engine(session: aiohttp.ClientSession, front: Gateway, pair: Served) -> None:
    await revive(pair.prefill, pair.decode)
    await check_hang_ups(session, front, pair, _seeds)


async def test_a_dead_coordinator_is_survived(session: aiohttp.ClientSession, front: Gateway, pair: Served) -> None:
    await asyncio.to_thread(pair.coordinator.kill)
    await check_serves(session, front, pair.prefill, make_prompt(next(_seeds), 120))
    await start(pair.coordinator)
    await check_moves_again(session, front, pair, _seeds)


@pytest.mark.parametrize("role", [Role.DECODE, pytest.param(Role.PREFILL, marks=pytest.mark.soak)])
async def test_a_dead_server_is_survived(
    role: Role, session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    """Its engine computes by itself, and so does D without what P's holds. It comes back at the address it had."""
    await asyncio.to_thread(pair.servers[role].kill)
    await check_serves(session, front, pair.prefill, make_prompt(next(_seeds), 120))
    await start(pair.servers[role])
    await check_moves_again(session, front, pair, _seeds)


async def test_a_dead_peer_is_survived(session: aiohttp.ClientSession, front: Gateway, pair: Served) -> None:
    """P and its server, as when a node dies: D computes by itself. They do not come back."""
    await start(pair.servers[Role.PREFILL])
    await revive(pair.prefill)
    body = {"prompt": make_prompt(next(_seeds), 120), "max_tokens": 16}
    expected = (await complete(session, pair.prefill.url, {**body, "cache_salt": "alone"})).text
    await asyncio.to_thread(pair.prefill.kill)
    await asyncio.to_thread(pair.servers[Role.PREFILL].kill)
    got = await complete(session, front.url, body)
    assert (got.status, got.text) == (200, expected)


async def start(server: SideProcess) -> None:
    """Start it if it is dead."""
    if server.process is None or server.process.poll() is not None:
        server.start()
        await asyncio.to_thread(server.wait_until_healthy)
