"""LMCacheP2P: P's server keeps the KV, D's reads it. Real vLLM engines, servers and coordinator, over TCP."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from pdx_api.connectors.lmcache_p2p import LMCacheP2P
from pdx_api.names import Order, Role
from tests.engines.campaign import fresh
from tests.engines.conftest import Pair
from tests.engines.harness import Engine, Gateway, SideProcess, gateway, running, tiny_spec
from tests.engines.lmcache import check_shape, environment, needs_lmcache

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
    prefill, decode = (Engine(spec, role, logs, services=(coordinator, own)) for role, own in servers.items())
    with pytest.MonkeyPatch.context() as patch:
        environment(patch)
        with running(coordinator, *servers.values()), running(prefill, decode):
            yield Served(prefill, decode, logs, coordinator, servers)


@pytest.fixture(scope="module")
def front(pair: Served) -> Iterator[Gateway]:
    with gateway(Order.PREFILL_FIRST, [pair.prefill], [pair.decode], pair.logs) as found:
        yield found


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
async def test_text_is_a_single_engines_and_the_prompt_came_from_outside(
    chat: bool, stream: bool, session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    await check_shape(session, front, pair, _seeds, chat=chat, stream=stream)
