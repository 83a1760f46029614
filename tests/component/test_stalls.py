"""Stalls of a test's event loop are measured."""

import asyncio
import time

from tests.component.stalls import SHORTEST, watched


async def test_a_stall_is_measured() -> None:
    async with watched() as stalls:
        await asyncio.sleep(0.01)
        time.sleep(2 * SHORTEST)  # noqa: ASYNC251 (the stall)
        await asyncio.sleep(0.01)
    assert stalls.matter
