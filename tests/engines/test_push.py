"""NIXL, DecodeFirst and Concurrent: P pushes into D's blocks. Real vLLM engines."""

from collections.abc import Iterator

import aiohttp
import pytest

from pdx_api.names import Order
from tests.engines import campaign
from tests.engines.conftest import Pair
from tests.engines.harness import Gateway, gateway


@pytest.fixture(scope="module", params=[Order.DECODE_FIRST, Order.CONCURRENT], ids=str)
def front(request: pytest.FixtureRequest, push_pair: Pair) -> Iterator[Gateway]:
    with gateway(request.param, [push_pair.prefill], [push_pair.decode], push_pair.logs) as running:
        yield running


async def test_text_is_a_single_engines_and_the_prompt_came_from_outside(
    session: aiohttp.ClientSession, front: Gateway, push_pair: Pair
) -> None:
    await campaign.check_text_and_transfer(session, front, push_pair.prefill, push_pair.decode, moves=True)


async def test_clients_with_one_request_id_get_their_own_answers(
    session: aiohttp.ClientSession, front: Gateway, push_pair: Pair
) -> None:
    await campaign.check_same_request_id(session, front, push_pair.prefill)


async def test_hang_ups_are_settled(session: aiohttp.ClientSession, front: Gateway, push_pair: Pair) -> None:
    before = push_pair.prefill.leases_expired
    outcomes = await campaign.hang_up_at_random(session, front, 200, seed=2)
    assert set(outcomes) == {200, "left"}
    await campaign.check_settled(front, push_pair.prefill, push_pair.decode, expired_before=before, at_most=1)
