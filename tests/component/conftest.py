"""Fixtures that create worlds, check their invariants and close them at the end of each test."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdx_api.names import Order, Role
from tests.component.changing import Changing, MakeChanging
from tests.component.harness import AGENT_SHAPES, FAST, ORDERS, SHAPES, Shape, World

MakeWorld = Callable[..., Coroutine[Any, Any, World]]


def _form(shape: Shape) -> Any:
    """`make test` runs each API and each form once: texts whole, and chats as streams."""
    return pytest.param(shape, marks=() if shape.chat is shape.stream else pytest.mark.soak, id=shape.label)


@pytest.fixture(params=ORDERS)
def order(request: pytest.FixtureRequest) -> Order:
    return Order(request.param)


@pytest.fixture(params=[_form(shape) for shape in SHAPES])
def shape(request: pytest.FixtureRequest) -> Shape:
    found = request.param
    assert isinstance(found, Shape)
    return found


@pytest.fixture(params=AGENT_SHAPES, ids=lambda s: s.label)
def agent(request: pytest.FixtureRequest) -> Shape:
    """A request of a coding agent."""
    found = request.param
    assert isinstance(found, Shape)
    return found


@pytest.fixture
async def make_world() -> AsyncIterator[MakeWorld]:
    """Create worlds. `sim`, `p` and `d` change the settings of all engines, of P's and of D's.

    With a directory `storage` KV moves through it, otherwise by `connector`.
    """
    worlds: list[World] = []
    async with AsyncExitStack() as stack:

        async def make(
            order: Order,
            prefill: int = 1,
            decode: int = 1,
            *,
            sim: dict[str, Any] | None = None,
            p: dict[str, Any] | None = None,
            d: dict[str, Any] | None = None,
            storage: Path | None = None,
            connector: str = "NIXL",
            gateway: bool = True,
            **more: Any,
        ) -> World:
            world = World(order, connector if storage is None else "SharedStorage")
            stack.push_async_callback(world.close)
            wiring = {"connector": world.connector, "storage": str(storage or ""), **(sim or {})}
            base = replace(FAST, order=order, **wiring)
            world.connector = base.connector
            prefills = [replace(base, **{"role": Role.PREFILL, "seed": i, **(p or {})}) for i in range(prefill)]
            decodes = [replace(base, **{"role": Role.DECODE, "seed": i, **(d or {})}) for i in range(decode)]
            await world.start_engines(prefills, decodes)
            worlds.append(world)
            return await world.start_gateway(**more) if gateway else world

        yield make
        for world in worlds:
            if world.control is not None and not world.void:
                await world.check()


@pytest.fixture
async def make_changing() -> AsyncIterator[MakeChanging]:
    """Create a world with the named pods."""
    worlds: list[Changing] = []

    async def make(
        order: Order, *names: str, warm: bool = True, sim: dict[str, Any] | None = None, **more: Any
    ) -> Changing:
        world = Changing(order)
        worlds.append(world)
        await world.start_engines([], [])
        for name in names:
            await world.add(name, **(sim or {}))
        await world.start_gateway(warm=False, discovery=world.pods, debug_headers=True, **{"endpoints": (), **more})
        if warm:
            await world.all_warm()
        return world

    try:
        yield make
        for world in worlds:
            await world.check()
    finally:
        for world in worlds:
            await world.close()
