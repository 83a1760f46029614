"""NIXL in push orders when P dies. D's blocks of what was under way stay held: these engines serve nothing else."""

import aiohttp

from pdx_api.names import Order
from tests.engines import campaign
from tests.engines.conftest import Pair
from tests.engines.harness import gateway


async def test_a_prefill_engine_that_is_killed_costs_no_request(
    session: aiohttp.ClientSession, push_pair: Pair
) -> None:
    with gateway(Order.CONCURRENT, [push_pair.prefill], [push_pair.decode], push_pair.logs) as front:
        await campaign.check_no_request_was_lost(session, front, push_pair.prefill, push_pair.decode, seed=500_000)
