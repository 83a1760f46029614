"""Mode Aggregated: one pool with chunked prefill. Real vLLM."""

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from pdx_api.names import Mode, Order, Role
from pdx_api.spec.types import ChunkedPrefill, Pool
from tests.engines.support import campaign
from tests.engines.support.harness import Engine, Gateway, gateway, running, tiny_spec

CHUNK = 128


@pytest.fixture(scope="module")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    pool = Pool(chunked_prefill=ChunkedPrefill(max_batched_tokens=CHUNK))
    spec = tiny_spec(tiny_model).model_copy(update={"mode": Mode.AGGREGATED, "aggregated": pool})
    one = Engine(spec, Role.AGGREGATED, tmp_path_factory.mktemp("aggregated"))
    with running(one):
        yield one


@pytest.fixture(scope="module")
def front(engine: Engine) -> Iterator[Gateway]:
    with gateway(Order.PREFILL_FIRST, [], [engine], engine.logs, Mode.AGGREGATED) as running_gateway:
        yield running_gateway


async def test_text_is_the_engines_own_and_no_kv_moves(
    session: aiohttp.ClientSession, front: Gateway, engine: Engine
) -> None:
    await campaign.check_text_and_transfer(session, front, engine, engine, moves=False)


async def test_the_chunk_size_is_vllms(front: Gateway, engine: Engine) -> None:
    """vLLM chooses the chunks of its prefills itself."""
    log = (engine.logs / f"{engine.role}-{engine.port}.log").read_text()
    assert f"Chunked prefill is enabled with max_num_batched_tokens={CHUNK}" in log
