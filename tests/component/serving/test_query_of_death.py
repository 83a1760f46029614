"""Requests that kill engines: how many, and what others notice. See docs/failures.md."""

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from pdx_api.names import Order, PrefillFailure, Role
from pdx_proxy.config.settings import Keys, Limits, Retries
from tests.component.conftest import MakeWorld
from tests.component.deadly import WORD, Mine, Way, send_ordinary
from tests.component.harness import Reply, Shape, World

KILLER: Final = {"Authorization": "Bearer killer-key"}
OTHER: Final = {"Authorization": "Bearer other-key"}
NAMES: Final = ("killer", "other", "accomplice")
BUDGET: Final = Retries(min_retries=1000)
"""Not what limits the deaths."""


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    lines = (f"sha256:{sha256(f'{name}-key'.encode()).hexdigest()} {name}\n" for name in NAMES)
    (tmp_path / "clients").write_text("".join(lines))
    return Keys(clients=str(tmp_path / "clients"))


async def _world(make_world: MakeWorld, order: Order, *numbers: int, **more: Any) -> World:
    world = await make_world(order, *(numbers or (3, 3)), **{"retries": BUDGET, **more})
    world.allowed.stranded = world.allowed.expired = True
    world.allowed.orphan_tokens = 10_000
    return world


def _is_final(reply: Reply) -> bool:
    """Whether the answer says that the request must not be sent again."""
    final = "It is not tried again" in reply.error["message"]
    return reply.status == 500 and final and "retry-after" not in reply.headers


async def _kill(world: World, shape: Shape = Shape(), name: str = "", headers: dict[str, str] | None = None) -> Reply:
    return await world.complete(shape, headers or KILLER, prompt=f"{WORD} {name}", tokens=40)


def _roles(mine: Mine) -> set[str]:
    return {name.partition("-")[0] for name in mine.deaths}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("way", [Way.RESET, Way.CORE, Way.FIRST_500, Way.LATE])
async def test_one_request_kills_two_engines(
    way: Way, stream: bool, order: Order, make_world: MakeWorld, keys: Keys
) -> None:
    world = await _world(make_world, order, keys=keys, p={"prefill_base_seconds": 0.02})
    mine = Mine(world, way)
    reply = await _kill(world, Shape(stream=stream))
    assert _is_final(reply), reply
    assert len(mine.deaths) == 2, mine.deaths
    await send_ordinary(world, 200, OTHER)
    assert len(mine.deaths) == 2, mine.deaths
    await mine.over()
    await world.warm()
