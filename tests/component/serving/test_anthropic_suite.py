"""What Anthropic's own tests of their SDK find at an engine, they find through the gateway."""

import asyncio
from pathlib import Path

import pytest

from pdx_api.names import Order
from tests import sdk_suite
from tests.component.conftest import MakeWorld


@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", [sdk_suite.EACH_ONCE, pytest.param(sdk_suite.ALL, marks=pytest.mark.soak)])
async def test_what_passes_at_an_engine_passes_through_the_gateway(
    which: str, make_world: MakeWorld, tmp_path: Path
) -> None:
    suite = sdk_suite.unpacked(tmp_path)
    world = await make_world(Order.PREFILL_FIRST)
    direct = await asyncio.to_thread(sdk_suite.outcomes, suite, world.d.url, "sim", which)
    through = await asyncio.to_thread(sdk_suite.outcomes, suite, world.url, "sim", which)
    world.sent = sum((await world.outcomes()).values())
    assert list(direct.values()).count("passed") > len(direct) / 4
    assert sdk_suite.lost(direct, through) == []
