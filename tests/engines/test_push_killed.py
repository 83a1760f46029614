"""NIXL in push orders when P dies. D's blocks of what was under way stay held: these engines serve nothing else."""

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from pdx_api.names import Order
from tests.engines import campaign
from tests.engines.conftest import Pair, running_pair
from tests.engines.harness import gateway


@pytest.fixture(scope="module")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tiny_model, tmp_path_factory.mktemp("push_killed"), "Concurrent") as engines:
        yield engines


async def test_a_prefill_engine_that_is_killed_costs_no_request(session: aiohttp.ClientSession, pair: Pair) -> None:
    with gateway(Order.CONCURRENT, [pair.prefill], [pair.decode], pair.logs) as front:
        await campaign.check_no_request_was_lost(session, front, pair.prefill, pair.decode, seed=500_000)
